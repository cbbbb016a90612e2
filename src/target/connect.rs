//! Opening the lanes of a target, so that nothing of an earlier connection can still arrive.

use super::Error;
use crate::delivery::record::{self, Record};
use crate::net::conn::{Conn, Server};
use crate::net::info::Info;
use crate::resp::reply::Reply;

/// A job as its connections name it in CLIENT LIST: `keyferry:<job>:<token>:<round>:<lane>`.
#[derive(Debug, Clone)]
pub struct Identity {
    pub job: String,
    /// This run of the job.
    pub token: String,
    /// Go on where CLIENT LIST and KILL are refused.
    pub unfenced: bool,
}

/// All lanes of a target, just connected.
#[derive(Debug)]
pub struct Lanes {
    pub conns: Vec<Conn>,
    pub run_id: String,
    /// What the target holds for each lane.
    pub records: Vec<Option<Record>>,
}

/// Connects all lanes anew: names them, kills what is left of earlier rounds and of other runs of the job, then reads
/// the records. In this order: a killed connection's bytes can't run behind what the records said.
///
/// # Errors
/// When the target can't be reached, is no primary, or refuses.
pub async fn connect(server: &Server, id: &Identity, round: u64, lanes: usize) -> Result<Lanes, Error> {
    let mut conns = Vec::with_capacity(lanes);
    let mut run_id = None;
    for lane in 0..lanes {
        let mut conn = server.connect().await?;
        let name = format!("keyferry:{}:{}:{round}:{lane}", id.job, id.token);
        if let Reply::Error(words) = conn.call(&[&b"CLIENT"[..], b"SETNAME", name.as_bytes()]).await? {
            fence_refused(server, id, words)?;
        }
        let info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
        let role = info.get("role").unwrap_or("master");
        if role != "master" {
            return Err(Error::NotPrimary { address: server.address.to_string(), role: role.to_owned() });
        }
        let this = info.get("run_id").unwrap_or_default().to_owned();
        if run_id.get_or_insert_with(|| this.clone()) != &this {
            return Err(Error::TwoServers { address: server.address.to_string() });
        }
        conns.push(conn);
    }
    let first = conns.first_mut().ok_or(Error::OutOfStep { address: server.address.to_string() })?;
    fence(server, first, id, round).await?;
    let mut records = Vec::with_capacity(lanes);
    for lane in 0..lanes {
        let reply = first.ask(&[&b"GET"[..], &record::key(&id.job, lane)]).await?;
        records.push(reply.bytes().and_then(|text| Record::parse(text).ok()));
    }
    Ok(Lanes { conns, run_id: run_id.unwrap_or_default(), records })
}

/// Kills every connection of the job that isn't of this run and round.
async fn fence(server: &Server, conn: &mut Conn, id: &Identity, round: u64) -> Result<(), Error> {
    let list = match conn.call(&[&b"CLIENT"[..], b"LIST"]).await? {
        Reply::Error(words) => return fence_refused(server, id, words),
        list => list,
    };
    let list = String::from_utf8_lossy(list.bytes().unwrap_or_default()).into_owned();
    for old in former(&list, id, round) {
        // It may be gone by itself in the meantime, which is as good; a refusal is not.
        match conn.call(&[&b"CLIENT"[..], b"KILL", b"ID", old.as_bytes()]).await? {
            Reply::Error(words) if words.starts_with("NOPERM") => return fence_refused(server, id, words),
            _ => tracing::debug!(target = conn.address(), client = old, "killed a former connection"),
        }
    }
    Ok(())
}

/// The ids of the job's connections that are to be killed.
fn former<'a>(list: &'a str, id: &Identity, round: u64) -> Vec<&'a str> {
    let ours = format!("keyferry:{}:", id.job);
    let now = format!("keyferry:{}:{}:{round}:", id.job, id.token);
    let word = |line: &'a str, name: &str| line.split(' ').find_map(|w| w.strip_prefix(name));
    list.lines()
        .filter(|line| word(line, "name=").is_some_and(|n| n.starts_with(&ours) && !n.starts_with(&now)))
        .filter_map(|line| word(line, "id="))
        .collect()
}

fn fence_refused(server: &Server, id: &Identity, words: String) -> Result<(), Error> {
    let address = server.address.to_string();
    if id.unfenced {
        tracing::warn!(target = address, error = words, "former connections can't be killed");
        return Ok(());
    }
    Err(Error::Unfenced { address, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_connections_are_those_of_other_rounds_and_runs() {
        let id = Identity { job: "a-b".into(), token: "t2".into(), unfenced: false };
        let list = "id=3 addr=1 laddr=2 fd=8 name=keyferry:a-b:t2:5:0 age=0\n\
                    id=4 addr=1 name=keyferry:a-b:t2:4:0 age=0\n\
                    id=5 addr=1 name=keyferry:a-b:t1:9:1 age=0\n\
                    id=6 addr=1 name=keyferry:a-bc:t1:9:1 age=0\n\
                    id=7 addr=1 name= age=0\n";
        assert_eq!(former(list, &id, 5), ["4", "5"]);
    }
}
