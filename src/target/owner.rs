//! One owner: the lease of a job in its target, how it is taken, kept, looked at and given back.
//!
//! The lease only tells who the owner is. What keeps others from writing is that an owner kills their connections, and
//! that whoever connects looks at the lease behind its connection's name (`connect`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Error;
use super::connect::{self, Identity};
use super::lease::{Holder, LEASE_MS, Lease, Seen, Verdict, may_take};
use super::nodes::{Node, Target};
use crate::delivery::refusal::{Refusal, refusal};
use crate::net::conn::Conn;
use crate::net::locate::Locator;
use crate::resp::reply::Reply;

/// How often an owner looks whether the lease is still its own.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Every so many looks the lease is renewed: every 3 s.
const LOOKS_PER_RENEWAL: u32 = 3;

/// How long a look may take: then the lease has run out anyway.
const LOOK_MAX: Duration = Duration::from_millis(LEASE_MS);

/// How often a starter looks while it can't tell whether the holder lives.
const DECIDE_INTERVAL: Duration = Duration::from_millis(100);

/// So many looks must be enough to decide.
const DECISIONS_MAX: u32 = 100;

/// How often the lease may come and go while it's looked at.
const CHECKS_MAX: u32 = 10;

/// How long giving the lease back may take at the end.
const RELEASE_MAX: Duration = Duration::from_secs(3);

/// A job that is this run's. Renews the lease until it's given back, lost or dropped.
#[derive(Debug)]
pub struct Owner {
    target: Target,
    identity: Identity,
    renewal: AbortHandle,
    lost: watch::Receiver<Option<Arc<Lease>>>,
}

impl Owner {
    /// Takes the lease if it may be taken, kills every connection of other runs, and keeps the lease from then on.
    ///
    /// `takeover` takes it from an owner that lives; it's set back once that is done, so that two who are started so
    /// don't take it from each other in turns.
    /// # Errors
    /// `Owned` when another has it; when the target can't be reached or refuses.
    pub async fn acquire(target: &Target, identity: &Identity, takeover: &mut bool) -> Result<Owner, Error> {
        let mut reach = Reach::open(target, identity).await?;
        let mut desk = reach.desk();
        let former = take(&mut desk, identity, *takeover).await?;
        if let Some(former) = former.filter(|lease| lease.token != identity.token()) {
            tracing::warn!(
                target = desk.conn.address(),
                job = identity.job,
                host = former.host,
                pid = former.pid,
                takeover = *takeover,
                "took the job from another owner"
            );
        }
        failpoint!("lease-taken");
        *takeover = false;
        desk.kill_others(identity).await?;
        look_at(&mut desk, identity).await?;
        renew(desk.conn, identity).await?;
        let (lost_to, lost) = watch::channel(None);
        let renewal = keep(target.clone(), identity.clone(), (reach.server, reach.conn), lost_to);
        Ok(Owner {
            target: target.clone(),
            identity: identity.clone(),
            renewal: tokio::spawn(renewal).abort_handle(),
            lost,
        })
    }

    /// Returns when another owner has taken the job, with the error that says so.
    ///
    /// Cancel-safe.
    pub async fn lost(&self) -> Error {
        let mut lost = self.lost.clone();
        let by = match lost.wait_for(Option::is_some).await {
            Ok(by) => by.clone(),
            Err(_) => None,
        };
        match by {
            Some(by) => owner_lost(&self.identity, &by),
            // The renewal only ends when this does.
            None => std::future::pending().await,
        }
    }

    /// Gives the lease back if it is still this run's, so that the next needn't ask who lives.
    ///
    /// A target that can't be reached any more is no error: the lease runs out.
    pub async fn release(&self) {
        self.renewal.abort();
        if self.lost.borrow().is_some() {
            return;
        }
        let target = self.target.to_string();
        match timeout(RELEASE_MAX, give_back(&self.target, &self.identity)).await {
            Ok(Ok(())) => tracing::debug!(target, "the lease is given back"),
            Ok(Err(error)) => {
                tracing::warn!(target, error = %error, "the lease is left to run out")
            }
            Err(_) => tracing::warn!(target, "the lease is left to run out: no answer"),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// The connection to the server that has the lease, and those to the other primaries of a cluster: who is connected
/// there counts too, and is killed there too.
struct Reach {
    server: Locator,
    conn: Conn,
    others: Vec<(Locator, Conn)>,
}

/// The same, lent.
struct Desk<'a> {
    server: &'a Locator,
    conn: &'a mut Conn,
    others: &'a mut [(Locator, Conn)],
}

impl Reach {
    async fn open(target: &Target, id: &Identity) -> Result<Reach, Error> {
        let Node { id: holder, server, .. } = target.holder(&id.lease_key()).await?;
        let conn = connect::named(&server, id, "lease").await?;
        let mut others = Vec::new();
        for node in target.nodes().await?.into_iter().filter(|node| node.id != holder) {
            let conn = connect::named(&node.server, id, "side").await?;
            others.push((node.server, conn));
        }
        Ok(Reach { server, conn, others })
    }

    fn desk(&mut self) -> Desk<'_> {
        Desk { server: &self.server, conn: &mut self.conn, others: &mut self.others }
    }
}

impl Desk<'_> {
    /// The tokens of other runs that are connected anywhere; `None` where that can't be told.
    async fn other_runs(&mut self, id: &Identity) -> Result<Option<HashSet<String>>, Error> {
        let mut all = connect::other_runs(self.server, self.conn, id).await?;
        for (server, conn) in self.others.iter_mut() {
            let more = connect::other_runs(server, conn, id).await?;
            all = all.zip(more).map(|(mut all, more)| {
                all.extend(more);
                all
            });
        }
        Ok(all)
    }

    async fn kill_others(&mut self, id: &Identity) -> Result<(), Error> {
        connect::kill_others(self.server, self.conn, id).await?;
        for (server, conn) in self.others.iter_mut() {
            connect::kill_others(server, conn, id).await?;
        }
        Ok(())
    }
}

/// Looks at the lease behind a new connection's name: whoever was killed by a new owner finds that owner here.
///
/// A lease that is gone (it ran out while this process was frozen, or was wiped) is taken again, unless somebody else
/// is faster. So is one whose holder doesn't live: a target that restarted from an older file, or a replica that took
/// over, may know an owner before this one.
/// # Errors
/// `OwnerLost` when another has it; when the target can't be reached or refuses.
pub async fn check(server: &Locator, conn: &mut Conn, id: &Identity) -> Result<(), Error> {
    look_at(&mut Desk { server, conn, others: &mut [] }, id).await
}

/// The same for connections to nodes of a cluster, which are named by then: the lease is at the node of its slot.
///
/// # Errors
/// `OwnerLost` when another has it; when the target can't be reached or refuses.
pub async fn check_in(target: &Target, id: &Identity) -> Result<(), Error> {
    let mut conn = target.holder(&id.lease_key()).await?.server.connect().await?;
    // As a rule it's this run's. Whatever else there is to say needs the other nodes, and is said below.
    if let Ok(true) = holds(&mut conn, id).await {
        return Ok(());
    }
    look_at(&mut Reach::open(target, id).await?.desk(), id).await
}

async fn look_at(desk: &mut Desk<'_>, id: &Identity) -> Result<(), Error> {
    if !holds!("lease-looked-at") {
        return Ok(());
    }
    let (key, mine) = (id.lease_key(), id.me.encode());
    let px = LEASE_MS.to_string();
    for _ in 0..CHECKS_MAX {
        match desk.conn.call(&[&b"GET"[..], &key]).await? {
            Reply::Null => {}
            // Its slot moves, and it's at the other node, or gone: until that is over nobody can take it.
            Reply::Error(words) if words.starts_with("ASK ") || words.starts_with("TRYAGAIN") => {
                tracing::warn!(target = desk.conn.address(), error = words, "the lease's slot is on the move");
                return Ok(());
            }
            Reply::Error(words) => return Err(super::refused(desk.conn, b"GET", words)),
            lease => {
                let lease = Lease::parse(lease.bytes().unwrap_or_default());
                return if lease.token == id.token() { Ok(()) } else { take_back(desk, id).await };
            }
        }
        let set = [&b"SET"[..], &key, mine.as_bytes(), b"NX", b"PX", px.as_bytes()];
        match desk.conn.call(&set).await? {
            Reply::Null => {}
            // Nobody can take it now, and what excludes others is the killing.
            Reply::Error(words) if refusal(&words) != Refusal::ForGood => {
                tracing::warn!(target = desk.conn.address(), error = words, "the lease is gone and can't be written");
                return Ok(());
            }
            Reply::Error(words) => return Err(desk.conn.refused(b"SET", words).into()),
            _ => {
                tracing::info!(target = desk.conn.address(), job = id.job, "the lease was gone: taken again");
                return Ok(());
            }
        }
    }
    Err(Error::OutOfStep { address: desk.conn.address().to_owned() })
}

/// Takes the lease from a holder that doesn't live, as a starter would, and kills what is left of it.
async fn take_back(desk: &mut Desk<'_>, id: &Identity) -> Result<(), Error> {
    let former = match take(desk, id, false).await {
        Err(Error::Owned { by, .. }) => return Err(owner_lost(id, &by)),
        former => former?,
    };
    if let Some(former) = former {
        tracing::warn!(
            target = desk.conn.address(),
            job = id.job,
            host = former.host,
            pid = former.pid,
            "the lease was that of an owner that doesn't live: taken again"
        );
    }
    failpoint!("lease-taken-back");
    desk.kill_others(id).await
}

/// The commands that empty a target and leave the lease there, all in one transaction.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn flush(conn: &mut Conn, id: &Identity, flush: &[&[u8]]) -> Result<(), Error> {
    super::ask(conn, &[b"MULTI"]).await?;
    super::ask(conn, flush).await?;
    super::ask(conn, &set_lease(id)).await?;
    super::ask(conn, &[b"EXEC"]).await?;
    Ok(())
}

/// Writes the lease once it may be taken; returns the one that was there.
async fn take(desk: &mut Desk<'_>, id: &Identity, takeover: bool) -> Result<Option<Lease>, Error> {
    let key = id.lease_key();
    let mut since = Instant::now();
    let mut before = None;
    for _ in 0..DECISIONS_MAX {
        let others = desk.other_runs(id).await?;
        let conn = &mut *desk.conn;
        super::ask(conn, &[&b"WATCH"[..], &key]).await?;
        let lease = super::ask(conn, &[&b"GET"[..], &key]).await?.bytes().map(Lease::parse);
        let connected = match (&others, &lease) {
            // Who is connected can't be told.
            (None, _) => true,
            (Some(others), Some(lease)) if !lease.token.is_empty() => others.contains(&lease.token),
            (Some(others), _) => !others.is_empty(),
        };
        let now = Some((lease.as_ref().map(|lease| lease.token.clone()), connected));
        if now != before {
            (before, since) = (now, Instant::now());
        }
        let seen = Seen { connected, unchanged: since.elapsed() };
        let holder = lease.as_ref().map_or(Holder::Unknown, |lease| lease.holder(&id.me));
        let takeover = takeover || !holds!("lease");
        match (may_take(lease.as_ref(), &id.me, holder, seen, takeover), lease) {
            (Verdict::Take, lease) => {
                if write(conn, id).await? {
                    return Ok(lease);
                }
            }
            (Verdict::Refuse, Some(lease)) => return Err(owned(desk.server, id, lease)),
            (Verdict::Refuse | Verdict::Wait, _) => {
                super::ask(conn, &[b"UNWATCH"]).await?;
                sleep(DECIDE_INTERVAL).await;
            }
        }
    }
    Err(Error::OutOfStep { address: desk.server.to_string() })
}

/// Writes the lease, unless it has changed since it was watched; returns whether it did.
async fn write(conn: &mut Conn, id: &Identity) -> Result<bool, Error> {
    super::ask(conn, &[b"MULTI"]).await?;
    if let Reply::Error(words) = conn.call(&set_lease(id)).await? {
        return Err(super::refused(conn, b"SET", words));
    }
    Ok(super::ask(conn, &[b"EXEC"]).await? != Reply::Null)
}

fn set_lease(id: &Identity) -> [Vec<u8>; 5] {
    let text = id.me.encode().into_bytes();
    [b"SET".to_vec(), id.lease_key(), text, b"PX".to_vec(), LEASE_MS.to_string().into_bytes()]
}

/// Lets the lease stand for its whole time again. Goes through where memory is full, unlike SET.
///
/// For a lease that was just looked at. If another took it in between, that one stands longer, which does no harm.
async fn renew(conn: &mut Conn, id: &Identity) -> Result<(), Error> {
    super::ask(conn, &[&b"PEXPIRE"[..], &id.lease_key(), LEASE_MS.to_string().as_bytes()]).await?;
    Ok(())
}

/// Renews the lease for ever, whatever becomes of the connection; ends when another has it, and says so.
async fn keep(target: Target, id: Identity, conn: (Locator, Conn), lost: watch::Sender<Option<Arc<Lease>>>) {
    let mut conn = Some(conn);
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut count, mut failing) = (0_u32, false);
    loop {
        looks.tick().await;
        count = count.wrapping_add(1);
        let due = count.is_multiple_of(LOOKS_PER_RENEWAL);
        let error = match timeout(LOOK_MAX, look(&target, &id, &mut conn, due)).await {
            Ok(Ok(())) => {
                failing = false;
                continue;
            }
            Ok(Err(Error::OwnerLost { by, .. })) => {
                lost.send_replace(Some(by));
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        conn = None;
        // The lanes say, and decide, what an unreachable target means.
        if !failing {
            tracing::warn!(target = %target, error, "the lease can't be renewed: trying on");
        }
        failing = true;
    }
}

async fn look(target: &Target, id: &Identity, conn: &mut Option<(Locator, Conn)>, due: bool) -> Result<(), Error> {
    let due = due || conn.is_none();
    if conn.is_none() {
        let server = target.holder(&id.lease_key()).await?.server;
        let opened = connect::named(&server, id, "lease").await?;
        *conn = Some((server, opened));
    }
    let Some((server, conn)) = conn else { return Ok(()) };
    match target {
        Target::Standalone(_) => check(server, conn, id).await?,
        // As a rule it is, and then the other nodes needn't be asked.
        Target::Cluster(_) if holds(conn, id).await? => {}
        Target::Cluster(_) => check_in(target, id).await?,
    }
    if due {
        renew(conn, id).await?;
    }
    Ok(())
}

/// Whether the lease is this run's.
async fn holds(conn: &mut Conn, id: &Identity) -> Result<bool, Error> {
    let lease = super::ask(conn, &[&b"GET"[..], &id.lease_key()]).await?;
    Ok(lease.bytes().map(Lease::parse).is_some_and(|lease| lease.token == id.token()))
}

/// Deletes the lease if it's this run's.
async fn give_back(target: &Target, id: &Identity) -> Result<(), Error> {
    let key = id.lease_key();
    let server = target.holder(&key).await?.server;
    let mut conn = connect::named(&server, id, "lease").await?;
    super::ask(&mut conn, &[&b"WATCH"[..], &key]).await?;
    if holds(&mut conn, id).await? {
        super::ask(&mut conn, &[b"MULTI"]).await?;
        super::ask(&mut conn, &[&b"DEL"[..], &key]).await?;
        super::ask(&mut conn, &[b"EXEC"]).await?;
        failpoint!("lease-given-back");
    }
    Ok(())
}

fn owned(server: &Locator, id: &Identity, lease: Lease) -> Error {
    Error::Owned { address: server.to_string(), job: id.job.clone(), by: Arc::new(lease) }
}

fn owner_lost(id: &Identity, by: &Lease) -> Error {
    Error::OwnerLost { job: id.job.clone(), by: Arc::new(by.clone()) }
}
