//! What a standalone target keeps of the slots of a cluster source: who feeds each, or that it moves.

use super::connect::{self, Identity};
use super::{Error, checkpoint};
use crate::delivery::motion::State;
use crate::delivery::motion::kept::{self, Kept};
use crate::net::locate::Locator;
use crate::slot::Slot;

/// # Errors
/// When the target can't be reached.
pub async fn read(server: &Locator, job: &str) -> Result<Kept, Error> {
    let mut conn = server.connect().await?;
    let fields = checkpoint::fields(&mut conn, &kept::hash_key(job)).await?;
    Ok(Kept::read(fields.iter().map(|(field, value)| (&field[..], &value[..]))))
}

/// Begins anew: these are the first feeders, and nothing else is known.
///
/// # Errors
/// When the target can't be reached or refuses, or another run has the job.
pub async fn write_first(server: &Locator, id: &Identity, first: &str) -> Result<(), Error> {
    let key = kept::hash_key(&id.job);
    let mut conn = connect::side(server, id).await?;
    conn.ask(&[&b"DEL"[..], &key]).await?;
    conn.ask(&[&b"HSET"[..], &key, kept::FIRST, first.as_bytes()]).await?;
    Ok(())
}

/// Says what has become of slots beside the streams. `doubts`: a later process is to copy all keys of whatever it finds
/// in motion, since lanes may yet bring what they were given of it before.
///
/// # Errors
/// When the target can't be reached or refuses, or another run has the job.
pub async fn write(server: &Locator, id: &Identity, states: &[(Slot, State)], doubts: bool) -> Result<(), Error> {
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
    Ok(())
}
