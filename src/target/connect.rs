//! Opening the lanes of a target, so that nothing of an earlier connection can still arrive.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::lease::Lease;
use super::{Error, owner};
use crate::delivery::record::{self, Record};
use crate::delivery::refusal::{Refusal, refusal};
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::resp::reply::Reply;

/// A run of a job, as its connections name it in CLIENT LIST: `keyferry:<job>:<token>:<round>:<shard>.<lane>`.
///
/// A round is one connecting of all lanes of a shard; they are counted over the whole run, so that a later session's
/// kill an earlier one's. Other connections bear a word in the lane's place and the round that is now, and those of no
/// shard the word alone.
#[derive(Debug, Clone)]
pub struct Identity {
    pub job: String,
    /// The source primary whose units the connections carry; `None`: they are of the job as a whole.
    shard: Option<u32>,
    /// The lease that this run holds.
    pub me: Lease,
    /// Go on where CLIENT LIST and KILL are refused.
    pub unfenced: bool,
    rounds: Arc<AtomicU64>,
    /// Whether it was said that former connections can't be killed.
    said_unfenced: Arc<AtomicBool>,
}

/// In the lane's place for the connection that renews the lease: no later round kills it.
const LEASE_WORD: &str = "lease";

impl Identity {
    /// A run that no other has the name of.
    pub fn new(job: &str, unfenced: bool) -> Self {
        // The standard library seeds each hasher from the system's randomness.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        let me = Lease::of_this_process(format!("{:016x}", hasher.finish()));
        Identity {
            job: job.to_owned(),
            shard: None,
            me,
            unfenced,
            rounds: Arc::default(),
            said_unfenced: Arc::default(),
        }
    }

    /// The same run, for connections of one shard.
    pub fn of_shard(&self, shard: u32) -> Identity {
        Identity { shard: Some(shard), ..self.clone() }
    }

    /// What stands for the job in the keys of the shard's records.
    pub fn records(&self) -> String {
        record::of_shard(&self.job, self.shard.unwrap_or(0))
    }

    /// This run of the job.
    pub fn token(&self) -> &str {
        &self.me.token
    }

    pub fn lease_key(&self) -> Vec<u8> {
        format!("keyferry:{}:owner", self.job).into_bytes()
    }

    /// Begins a new connecting: [`kill`] ends those of earlier rounds.
    pub(super) fn next_round(&self) -> u64 {
        self.rounds.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn name(&self, round: u64, lane: &str) -> String {
        let shard = self.shard.filter(|_| lane != LEASE_WORD).map(|shard| format!("{shard}.")).unwrap_or_default();
        format!("keyferry:{}:{}:{round}:{shard}{lane}", self.job, self.token())
    }

    /// True for the name of a connection, without the lane's number or word, whose place a new round takes.
    fn replaces(&self, lane: &str) -> bool {
        let shard = lane.split_once('.').and_then(|(shard, _)| shard.parse().ok());
        lane != LEASE_WORD && (self.shard.is_none() || self.shard == shard)
    }
}

/// All lanes of a target, just connected.
#[derive(Debug)]
pub struct Lanes {
    pub conns: Vec<Conn>,
    pub run_id: String,
    /// What the target holds for each lane.
    pub records: Vec<Option<Record>>,
}

/// Connects all lanes anew: names them, looks whether the job is still this run's, kills what is left of earlier rounds
/// and of other runs, then reads the records. In this order: a killed connection's bytes can't run behind what the
/// records said, and whoever was killed finds the new owner's lease before it can kill anybody.
///
/// # Errors
/// `OwnerLost` when another run has the job; when the target can't be reached, is no primary, or refuses.
pub async fn connect(server: &Locator, id: &Identity, lanes: usize) -> Result<Lanes, Error> {
    let round = id.next_round();
    let mut conns = Vec::with_capacity(lanes);
    let mut run_id = None;
    // Once for all: they are to be connections to one server.
    let at = server.locate().await?;
    for lane in 0..lanes {
        let mut conn = at.connect().await?;
        set_name(server, &mut conn, id, &id.name(round, &lane.to_string())).await?;
        let info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
        let role = info.get("role").unwrap_or("master");
        if role != "master" {
            return Err(Error::NotPrimary { address: at.address.to_string(), role: role.replace("slave", "replica") });
        }
        let this = info.get("run_id").unwrap_or_default().to_owned();
        if run_id.get_or_insert_with(|| this.clone()) != &this && holds!("one-server") {
            return Err(Error::TwoServers { address: at.address.to_string() });
        }
        conns.push(conn);
    }
    let first = conns.first_mut().ok_or(Error::OutOfStep { address: server.to_string() })?;
    owner::check(server, first, id).await?;
    kill(server, first, id, round).await?;
    let mut records = Vec::with_capacity(lanes);
    for lane in 0..lanes {
        let reply = first.ask(&[&b"GET"[..], &record::key(&id.records(), lane)]).await?;
        records.push(reply.bytes().and_then(|text| Record::parse(text).ok()));
    }
    Ok(Lanes { conns, run_id: run_id.unwrap_or_default(), records })
}

/// A connection beside the lanes that may write: a new owner kills it, and it isn't there when another has the job.
///
/// # Errors
/// `OwnerLost` when another run has the job; when the target can't be reached or refuses.
pub async fn side(server: &Locator, id: &Identity) -> Result<Conn, Error> {
    let mut conn = named(server, id, "side").await?;
    owner::check(server, &mut conn, id).await?;
    Ok(conn)
}

/// A connection that bears the job's name, with a word in the lane's place.
///
/// # Errors
/// When the target can't be reached, or refuses the name.
pub async fn named(server: &Locator, id: &Identity, word: &str) -> Result<Conn, Error> {
    let mut conn = server.connect().await?;
    set_name(server, &mut conn, id, &id.name(id.rounds.load(Ordering::Relaxed), word)).await?;
    Ok(conn)
}

/// Kills every connection of other runs of the job.
///
/// # Errors
/// When the target can't be reached, or refuses and the job isn't unfenced.
pub async fn kill_others(server: &Locator, conn: &mut Conn, id: &Identity) -> Result<(), Error> {
    kill(server, conn, id, 0).await
}

/// The tokens of other runs of the job that are connected; `None` where CLIENT LIST is refused.
///
/// # Errors
/// When the target can't be reached, or refuses and the job isn't unfenced.
pub async fn other_runs(server: &Locator, conn: &mut Conn, id: &Identity) -> Result<Option<HashSet<String>>, Error> {
    let list = list(server, conn, id).await?;
    let tokens = |list: String| of_job(&list, id).map(|found| found.token.to_owned()).collect::<HashSet<_>>();
    Ok(list.map(tokens).map(|mut tokens| {
        tokens.remove(id.token());
        tokens
    }))
}

pub(super) async fn set_name(server: &Locator, conn: &mut Conn, id: &Identity, name: &str) -> Result<(), Error> {
    match conn.call(&[&b"CLIENT"[..], b"SETNAME", name.as_bytes()]).await? {
        Reply::Error(words) => refused(server, id, words),
        _ => Ok(()),
    }
}

/// What CLIENT LIST says; `None` where it is refused.
async fn list(server: &Locator, conn: &mut Conn, id: &Identity) -> Result<Option<String>, Error> {
    match conn.call(&[&b"CLIENT"[..], b"LIST"]).await? {
        Reply::Error(words) => refused(server, id, words).map(|()| None),
        list => Ok(Some(String::from_utf8_lossy(list.bytes().unwrap_or_default()).into_owned())),
    }
}

/// Kills every connection of other runs of the job, and this run's of rounds before `round` that this one replaces.
pub(super) async fn kill(server: &Locator, conn: &mut Conn, id: &Identity, round: u64) -> Result<(), Error> {
    let Some(list) = list(server, conn, id).await? else { return Ok(()) };
    for old in former(&list, id, round) {
        match conn.call(&[&b"CLIENT"[..], b"KILL", b"ID", old.as_bytes()]).await? {
            // It went by itself in the meantime, which is as good.
            Reply::Error(words) if words.contains("No such client") => {}
            Reply::Error(words) => return refused(server, id, words),
            _ => tracing::debug!(target = conn.address(), client = old, "killed a former connection"),
        }
    }
    Ok(())
}

/// A connection of the job, in a line of CLIENT LIST.
struct Listed<'a> {
    id: &'a str,
    token: &'a str,
    round: &'a str,
    lane: &'a str,
}

fn of_job<'a>(list: &'a str, id: &Identity) -> impl Iterator<Item = Listed<'a>> {
    let job = format!("keyferry:{}:", id.job);
    let word = |line: &'a str, name: &str| line.split(' ').find_map(|w| w.strip_prefix(name));
    list.lines().filter_map(move |line| {
        let mut parts = word(line, "name=")?.strip_prefix(job.as_str())?.splitn(3, ':');
        let mut part = || parts.next().unwrap_or_default();
        Some(Listed { id: word(line, "id=")?, token: part(), round: part(), lane: part() })
    })
}

/// The ids of the job's connections that are to be killed.
fn former<'a>(list: &'a str, id: &Identity, round: u64) -> Vec<&'a str> {
    let old = |found: &Listed| {
        if found.token != id.token() {
            return holds!("others-killed");
        }
        let of_now = found.round.parse().is_ok_and(|this: u64| this >= round);
        !of_now && id.replaces(found.lane) && holds!("own-killed")
    };
    of_job(list, id).filter(old).map(|found| found.id).collect()
}

/// What a refusal of CLIENT SETNAME, LIST or KILL means.
fn refused(server: &Locator, id: &Identity, words: String) -> Result<(), Error> {
    let address = server.to_string();
    if refusal(&words) != Refusal::ForGood {
        return Err(Error::Elsewhere { address, words });
    }
    if id.unfenced {
        if !id.said_unfenced.swap(true, Ordering::Relaxed) {
            tracing::warn!(target = address, error = words, "former connections can't be killed");
        }
        return Ok(());
    }
    Err(Error::Unfenced { address, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(job: &str, token: &str) -> Identity {
        let mut id = Identity::new(job, false);
        id.me.token = token.into();
        id
    }

    #[test]
    fn former_connections_are_those_of_earlier_rounds_and_other_runs() {
        let list = "id=3 addr=1 laddr=2 fd=8 name=keyferry:a-b:t2:5:0 age=0\n\
                    id=4 addr=1 name=keyferry:a-b:t2:4:0 age=0\n\
                    id=5 addr=1 name=keyferry:a-b:t1:9:1 age=0\n\
                    id=6 addr=1 name=keyferry:a-bc:t1:9:1 age=0\n\
                    id=7 addr=1 name= age=0\n\
                    id=8 addr=1 name=keyferry:a-b:t2:0:lease age=0\n\
                    id=9 addr=1 name=keyferry:a-b:t1:9:lease age=0\n\
                    id=10 addr=1 name=keyferry:a-b:t2:6:0 age=0\n\
                    id=11 addr=1 name=keyferry:a-b:t2:4:side age=0\n\
                    id=12 addr=1 name=keyferry:a-b:odd age=0\n";
        let id = identity("a-b", "t2");
        assert_eq!(former(list, &id, 5), ["4", "5", "9", "11", "12"]);
        assert_eq!(former(list, &id, 0), ["5", "9", "12"]);
    }

    #[test]
    fn a_shards_round_ends_its_own_former_connections_and_a_jobs_those_of_all() {
        let list = "id=1 name=keyferry:j:t:3:0.0 age=0\n\
                    id=2 name=keyferry:j:t:4:1.0 age=0\n\
                    id=3 name=keyferry:j:t:5:1.side age=0\n\
                    id=4 name=keyferry:j:t:6:1.0 age=0\n\
                    id=5 name=keyferry:j:t:2:11.0 age=0\n\
                    id=6 name=keyferry:j:t:0:lease age=0\n\
                    id=7 name=keyferry:j:t:1:side age=0\n\
                    id=8 name=keyferry:j:old:9:1.0 age=0\n";
        let id = identity("j", "t");
        assert_eq!(former(list, &id.of_shard(1), 6), ["2", "3", "8"]);
        assert_eq!(former(list, &id, 7), ["1", "2", "3", "4", "5", "7", "8"]);
        let names = |id: &Identity| (id.name(7, "0"), id.name(7, "lease"), id.records());
        let of_shard = ("keyferry:j:t:7:1.0".to_owned(), "keyferry:j:t:7:lease".to_owned(), "j:1".to_owned());
        assert_eq!(names(&id.of_shard(1)), of_shard);
        assert_eq!(names(&id), ("keyferry:j:t:7:0".to_owned(), "keyferry:j:t:7:lease".to_owned(), "j".to_owned()));
        assert_eq!(id.of_shard(0).records(), "j");
    }

    #[test]
    fn rounds_go_on_over_clones_and_tokens_differ() {
        let id = Identity::new("a", false);
        assert_eq!((id.next_round(), id.clone().next_round(), id.next_round()), (1, 2, 3));
        assert_ne!(id.token(), Identity::new("a", false).token());
    }
}
