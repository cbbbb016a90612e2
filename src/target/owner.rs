//! One owner: the lease of a job in its target, how it is taken, kept, looked at and given back.
//!
//! The lease only tells who the owner is. What keeps others from writing is that an owner kills their connections, and
//! that whoever connects looks at the lease behind its connection's name (`connect`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Error;
use super::connect::{self, Identity};
use super::lease::{Holder, LEASE_MS, Lease, Seen, Verdict, may_take};
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
    server: Locator,
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
    pub async fn acquire(server: &Locator, identity: &Identity, takeover: &mut bool) -> Result<Owner, Error> {
        let mut conn = connect::named(server, identity, "lease").await?;
        let former = take(server, &mut conn, identity, *takeover).await?;
        if let Some(former) = former.filter(|lease| lease.token != identity.token()) {
            tracing::warn!(
                target = conn.address(),
                job = identity.job,
                host = former.host,
                pid = former.pid,
                takeover = *takeover,
                "took the job from another owner"
            );
        }
        failpoint!("lease-taken");
        *takeover = false;
        connect::kill_others(server, &mut conn, identity).await?;
        check(server, &mut conn, identity).await?;
        renew(&mut conn, identity).await?;
        let (lost_to, lost) = watch::channel(None);
        let renewal = keep(server.clone(), identity.clone(), conn, lost_to);
        Ok(Owner {
            server: server.clone(),
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
        let target = self.server.to_string();
        match timeout(RELEASE_MAX, give_back(&self.server, &self.identity)).await {
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

/// Looks at the lease behind a new connection's name: whoever was killed by a new owner finds that owner here.
///
/// A lease that is gone (it ran out while this process was frozen, or was wiped) is taken again, unless somebody else
/// is faster. So is one whose holder doesn't live: a target that restarted from an older file, or a replica that took
/// over, may know an owner before this one.
/// # Errors
/// `OwnerLost` when another has it; when the target can't be reached or refuses.
pub async fn check(server: &Locator, conn: &mut Conn, id: &Identity) -> Result<(), Error> {
    let (key, mine) = (id.lease_key(), id.me.encode());
    let px = LEASE_MS.to_string();
    for _ in 0..CHECKS_MAX {
        if let Some(lease) = conn.ask(&[&b"GET"[..], &key]).await?.bytes().map(Lease::parse) {
            return if lease.token == id.token() { Ok(()) } else { take_back(server, conn, id).await };
        }
        let set = [&b"SET"[..], &key, mine.as_bytes(), b"NX", b"PX", px.as_bytes()];
        match conn.call(&set).await? {
            Reply::Null => {}
            // Nobody can take it now, and what excludes others is the killing.
            Reply::Error(words) if refusal(&words) != Refusal::ForGood => {
                tracing::warn!(target = conn.address(), error = words, "the lease is gone and can't be written");
                return Ok(());
            }
            Reply::Error(words) => return Err(conn.refused(b"SET", words).into()),
            _ => {
                tracing::info!(target = conn.address(), job = id.job, "the lease was gone: taken again");
                return Ok(());
            }
        }
    }
    Err(Error::OutOfStep { address: conn.address().to_owned() })
}

/// Takes the lease from a holder that doesn't live, as a starter would, and kills what is left of it.
async fn take_back(server: &Locator, conn: &mut Conn, id: &Identity) -> Result<(), Error> {
    let former = match take(server, conn, id, false).await {
        Err(Error::Owned { by, .. }) => return Err(owner_lost(id, &by)),
        former => former?,
    };
    if let Some(former) = former {
        tracing::warn!(
            target = conn.address(),
            job = id.job,
            host = former.host,
            pid = former.pid,
            "the lease was that of an owner that doesn't live: taken again"
        );
    }
    failpoint!("lease-taken-back");
    connect::kill_others(server, conn, id).await
}

/// The commands that empty a target and leave the lease there, all in one transaction.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn flush(conn: &mut Conn, id: &Identity, flush: &[&[u8]]) -> Result<(), Error> {
    conn.ask(&[b"MULTI"]).await?;
    conn.ask(flush).await?;
    conn.ask(&set_lease(id)).await?;
    conn.ask(&[b"EXEC"]).await?;
    Ok(())
}

/// Writes the lease once it may be taken; returns the one that was there.
async fn take(server: &Locator, conn: &mut Conn, id: &Identity, takeover: bool) -> Result<Option<Lease>, Error> {
    let key = id.lease_key();
    let mut since = Instant::now();
    let mut before = None;
    for _ in 0..DECISIONS_MAX {
        let others = connect::other_runs(server, conn, id).await?;
        conn.ask(&[&b"WATCH"[..], &key]).await?;
        let lease = conn.ask(&[&b"GET"[..], &key]).await?.bytes().map(Lease::parse);
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
        match (may_take(lease.as_ref(), &id.me, holder, seen, takeover), lease) {
            (Verdict::Take, lease) => {
                if write(conn, id).await? {
                    return Ok(lease);
                }
            }
            (Verdict::Refuse, Some(lease)) => return Err(owned(server, id, lease)),
            (Verdict::Refuse | Verdict::Wait, _) => {
                conn.ask(&[b"UNWATCH"]).await?;
                sleep(DECIDE_INTERVAL).await;
            }
        }
    }
    Err(Error::OutOfStep { address: server.to_string() })
}

/// Writes the lease, unless it has changed since it was watched; returns whether it did.
async fn write(conn: &mut Conn, id: &Identity) -> Result<bool, Error> {
    conn.ask(&[b"MULTI"]).await?;
    if let Reply::Error(words) = conn.call(&set_lease(id)).await? {
        return Err(super::refused(conn, b"SET", words));
    }
    Ok(conn.ask(&[b"EXEC"]).await? != Reply::Null)
}

fn set_lease(id: &Identity) -> [Vec<u8>; 5] {
    let text = id.me.encode().into_bytes();
    [b"SET".to_vec(), id.lease_key(), text, b"PX".to_vec(), LEASE_MS.to_string().into_bytes()]
}

/// Lets the lease stand for its whole time again. Goes through where memory is full, unlike SET.
///
/// For a lease that was just looked at. If another took it in between, that one stands longer, which does no harm.
async fn renew(conn: &mut Conn, id: &Identity) -> Result<(), Error> {
    conn.ask(&[&b"PEXPIRE"[..], &id.lease_key(), LEASE_MS.to_string().as_bytes()]).await?;
    Ok(())
}

/// Renews the lease for ever, whatever becomes of the connection; ends when another has it, and says so.
async fn keep(server: Locator, id: Identity, conn: Conn, lost: watch::Sender<Option<Arc<Lease>>>) {
    let mut conn = Some(conn);
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut count, mut failing) = (0_u32, false);
    loop {
        looks.tick().await;
        count = count.wrapping_add(1);
        let due = count.is_multiple_of(LOOKS_PER_RENEWAL);
        let error = match timeout(LOOK_MAX, look(&server, &id, &mut conn, due)).await {
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
            tracing::warn!(target = %server, error, "the lease can't be renewed: trying on");
        }
        failing = true;
    }
}

async fn look(server: &Locator, id: &Identity, conn: &mut Option<Conn>, due: bool) -> Result<(), Error> {
    let due = due || conn.is_none();
    if conn.is_none() {
        *conn = Some(connect::named(server, id, "lease").await?);
    }
    let Some(conn) = conn else { return Ok(()) };
    check(server, conn, id).await?;
    if due {
        renew(conn, id).await?;
    }
    Ok(())
}

/// Deletes the lease if it's this run's.
async fn give_back(server: &Locator, id: &Identity) -> Result<(), Error> {
    let mut conn = connect::named(server, id, "lease").await?;
    let key = id.lease_key();
    conn.ask(&[&b"WATCH"[..], &key]).await?;
    let lease = conn.ask(&[&b"GET"[..], &key]).await?;
    if lease.bytes().map(Lease::parse).is_some_and(|lease| lease.token == id.token()) {
        conn.ask(&[b"MULTI"]).await?;
        conn.ask(&[&b"DEL"[..], &key]).await?;
        conn.ask(&[b"EXEC"]).await?;
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
