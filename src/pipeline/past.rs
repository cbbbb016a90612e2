//! What the decode thread writes to slots of a cluster past the lanes, each thing at once: slots that move on the source,
//! which no lane holds meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::ask::Asking;
use super::learn::AskError;
use crate::delivery::guard;
use crate::delivery::motion::{Name, State};
use crate::delivery::record::Phase;
use crate::delivery::slots::record::{History, SlotRecord, guards_key, slot_key, whole_key};
use crate::offset::ReplOffset;
use crate::resp::encode;
use crate::slot::Slot;
use crate::status::Status;
use crate::target::Error;
use crate::target::cluster::past::{Past, put_state};

/// How long to wait before it is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Writes past the lanes of one shard.
pub struct PastLanes {
    past: Past,
    asking: Asking,
    status: Arc<Status>,
    job: String,
    shard: u32,
    /// The shard's full sync.
    generation: u64,
}

/// From where on a shard feeds a slot that has come to it.
pub struct Switch {
    pub state: State,
    pub offset: ReplOffset,
    pub stream_db: u32,
    /// Keys that stand further ahead.
    pub ahead: Vec<(Name, ReplOffset)>,
}

impl PastLanes {
    pub fn new(past: Past, asking: Asking, status: Arc<Status>, job: &str, (shard, generation): (u32, u64)) -> Self {
        PastLanes { past, asking, status, job: job.to_owned(), shard, generation }
    }

    /// Says that a slot moves; returns which server knows.
    ///
    /// # Errors
    /// When the target refuses for good, or the session ends.
    pub fn tell(&mut self, slot: Slot, state: &State, doubts: bool) -> Result<String, AskError> {
        let mut raw = Vec::new();
        let commands = put_state(&self.job, slot, &state.encode(), doubts, &mut raw);
        self.retrying(slot, async |past| past.write(slot, &raw, commands, None).await)
    }

    /// Writes copied values.
    ///
    /// # Errors
    /// As for [`PastLanes::tell`].
    pub fn write(&mut self, slot: Slot, raw: &[u8], commands: u32) -> Result<(), AskError> {
        self.retrying(slot, async |past| past.write(slot, raw, commands, None).await).map(|_| ())
    }

    /// The keys that a slot has with their databases, and the server that has them.
    ///
    /// # Errors
    /// As for [`PastLanes::tell`].
    pub fn keys(&mut self, slot: Slot) -> Result<(Vec<Name>, String), AskError> {
        self.retrying(slot, async |past| past.keys(slot).await)
    }

    /// Says that the shard feeds a slot from here on. False if another server than `only` has the slot: what was
    /// acknowledged of it may be lost.
    ///
    /// # Errors
    /// As for [`PastLanes::tell`].
    pub fn switch(&mut self, slot: Slot, only: &str, switch: &Switch) -> Result<bool, AskError> {
        let record = SlotRecord {
            shard: self.shard,
            generation: self.generation,
            phase: Phase::Following,
            offset: switch.offset,
            stream_db: switch.stream_db,
            pieces: 0,
            history: self.asking.feed().replid().as_ref().and_then(History::of),
        };
        let mut text = Vec::new();
        record.encode(&mut text);
        let mut raw = Vec::new();
        let mut commands = put_state(&self.job, slot, &switch.state.encode(), false, &mut raw) + 2;
        encode::command(&mut raw, &[&b"SET"[..], &slot_key(&self.job, slot), &text]);
        let guards = guards_key(&self.job, slot);
        encode::command(&mut raw, &[&b"DEL"[..], &whole_key(&self.job, slot), &guards]);
        for ((db, key), at) in &switch.ahead {
            let at = at.to_string();
            encode::command(&mut raw, &[&b"HSET"[..], &guards, &guard::field(*db, key), at.as_bytes()]);
            commands += 1;
        }
        failpoint!("switch-past-lanes");
        let server = self.retrying(slot, async |past| past.write(slot, &raw, commands, Some(only)).await)?;
        failpoint!("switched-past-lanes");
        Ok(server == only)
    }

    fn retrying<T>(
        &mut self,
        slot: Slot,
        mut ask: impl AsyncFnMut(&mut Past) -> Result<T, Error>,
    ) -> Result<T, AskError> {
        let place = format!("slot {} of the target", slot.number());
        let mut waits = false;
        let answer = loop {
            match self.asking.ask(ask(&mut self.past)) {
                Some(Err(error)) if error.is_passing() => {
                    waits = true;
                    self.status.waiting(&place, &error.to_string());
                    if self.asking.pause(TRY_AGAIN).is_none() {
                        break Err(AskError::Ended);
                    }
                }
                Some(answer) => break answer.map_err(AskError::from),
                None => break Err(AskError::Ended),
            }
        };
        if waits {
            self.status.clear(&place);
        }
        answer
    }
}
