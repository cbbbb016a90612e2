//! What a target keeps of the slots of a cluster source: who feeds each, or that it moves.

use std::collections::BTreeMap;

use super::cluster::past::{Past, put_state};
use super::cluster::records;
use super::connect::{self, Identity};
use super::nodes::Target;
use super::{Error, checkpoint};
use crate::delivery::motion::State;
use crate::delivery::motion::kept::{self, Kept};
use crate::slot::Slot;

/// What is kept, and which server of a cluster said so of slots in motion.
///
/// # Errors
/// When the target can't be reached.
pub async fn read(target: &Target, job: &str) -> Result<(Kept, BTreeMap<Slot, String>), Error> {
    let Target::Standalone(server) = target else {
        let (states, servers) = records::read_all_states(target, job).await?;
        return Ok((Kept::of(states), servers));
    };
    let mut conn = server.connect().await?;
    let fields = checkpoint::fields(&mut conn, &kept::hash_key(job)).await?;
    Ok((Kept::read(fields.iter().map(|(field, value)| (&field[..], &value[..]))), BTreeMap::new()))
}

/// Begins anew: these are the first feeders, and nothing else is known. The records of a cluster's slots name them.
///
/// # Errors
/// When the target can't be reached or refuses, or another run has the job.
pub async fn write_first(target: &Target, id: &Identity, first: &str) -> Result<(), Error> {
    let Target::Standalone(server) = target else { return records::remove_states(target, id).await };
    let key = kept::hash_key(&id.job);
    let mut conn = connect::side(server, id).await?;
    conn.ask(&[&b"DEL"[..], &key]).await?;
    conn.ask(&[&b"HSET"[..], &key, kept::FIRST, first.as_bytes()]).await?;
    Ok(())
}

/// Says what has become of slots beside the streams. `doubts`: a later process is to copy all keys of whatever it finds
/// in motion, since lanes may yet bring what they were given of it before. Returns which servers of a cluster know.
///
/// # Errors
/// When the target can't be reached or refuses, or another run has the job.
pub async fn write(
    target: &Target,
    id: &Identity,
    states: &[(Slot, State)],
    doubts: bool,
) -> Result<Vec<(Slot, String)>, Error> {
    let Target::Standalone(server) = target else {
        let Some(mut past) = Past::new(target, id) else { return Ok(Vec::new()) };
        let mut servers = Vec::with_capacity(states.len());
        for (slot, state) in states {
            let mut raw = Vec::new();
            let commands = put_state(&id.job, *slot, &state.encode(), doubts, &mut raw);
            servers.push((*slot, past.write(*slot, &raw, commands, None).await?));
        }
        failpoint!("states-written");
        return Ok(servers);
    };
    let mut hset = vec![b"HSET".to_vec(), kept::hash_key(&id.job)];
    if doubts {
        hset.extend([kept::WHOLE.to_vec(), b"1".to_vec()]);
    }
    for (slot, state) in states {
        hset.push(kept::field(*slot));
        hset.push(state.encode().into_bytes());
    }
    let mut conn = connect::side(server, id).await?;
    conn.ask(&hset).await?;
    failpoint!("states-written");
    Ok(Vec::new())
}
