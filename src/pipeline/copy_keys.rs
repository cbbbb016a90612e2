//! Copying keys at an offset: a value from the source together with the place in the stream at which it was taken.
//!
//! From then on the key stands at that offset: the stream's units on it up to there are left out, since the value has
//! them already.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::ask::Asking;
use crate::commands::CopyKey;
use crate::delivery::guard::Guards;
use crate::delivery::motion::Name;
use crate::delivery::refusal;
use crate::net::backoff::Backoff;
use crate::net::conn;
use crate::offset::{ReplId, ReplOffset};
use crate::resp::reply::Reply;
use crate::slot::Slot;
use crate::source::side::{Found, Position, Side, position};

/// How long the stream may take to reach the offset of an answer, before the source is asked again.
const STREAM_WAIT: Duration = Duration::from_secs(10);

/// How long to wait before the source is asked again: each question is written to an old source's stream.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Why keys can't be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Net(#[from] conn::Error),
    #[error("the source's stream has no offsets (it only knows SYNC), so a key can't be copied at one")]
    NoOffsets,
    #[error("the source's stream did not come to offset {0}")]
    Behind(ReplOffset),
    #[error("a payload of the source is damaged: {0}")]
    Damaged(#[from] crate::rdb::Error),
    /// The stream doesn't come to the answer's offset in this session, which was told to end.
    #[error("the stream has ended")]
    Ended,
}

impl CopyError {
    pub fn is_passing(&self) -> bool {
        match self {
            CopyError::Net(error) => error.is_passing(),
            CopyError::Behind(_) => true,
            CopyError::NoOffsets | CopyError::Damaged(_) | CopyError::Ended => false,
        }
    }

    /// True if the keys are, or may be, at another node of the cluster.
    pub fn is_redirection(&self) -> bool {
        matches!(self, CopyError::Net(error) if is_redirection(error))
    }
}

fn is_redirection(error: &conn::Error) -> bool {
    matches!(error, conn::Error::Refused { words, .. } if refusal::is_redirection(words))
}

/// Whether a unit on a key is to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Nothing is known of the key: apply the unit.
    Free,
    /// The key was copied behind the unit: leave the unit out.
    Stands,
    /// The key may or may not have the unit: copy it.
    Unknown,
}

/// The side connection and the key guards.
pub struct CopyKeys {
    side: Side,
    asking: Asking,
    retry_for: Option<Duration>,
    guards: Guards,
    /// Keys that can't be trusted: to be copied before anything is applied to them.
    suspects: HashSet<(u32, Vec<u8>)>,
    /// No guard reaches past this.
    until: ReplOffset,
    /// Who asks knows what to do about keys that are elsewhere; else they are waited for.
    redirections: bool,
}

impl CopyKeys {
    pub fn new(side: Side, asking: Asking, retry_for: Option<Duration>) -> Self {
        CopyKeys {
            side,
            asking,
            retry_for,
            guards: Guards::default(),
            suspects: HashSet::new(),
            until: ReplOffset(0),
            redirections: false,
        }
    }

    /// Keys that are elsewhere are an answer.
    pub fn with_redirections(self, redirections: bool) -> Self {
        CopyKeys { redirections, ..self }
    }

    /// Forgets the guards that the stream has passed; true if any are left for a unit at `offset`.
    pub fn guards(&mut self, offset: ReplOffset) -> bool {
        if self.until >= offset {
            return true;
        }
        self.guards = Guards::default();
        !self.suspects.is_empty()
    }

    pub fn guard(&self, db: u32, key: &[u8], offset: ReplOffset) -> Guard {
        let stands = |at: Option<&ReplOffset>| at.is_some_and(|at| *at >= offset);
        let key = (db, key.to_vec());
        if stands(self.guards.keys.get(&key)) && holds!("guarded-units-left-out") {
            Guard::Stands
        } else if stands(self.guards.databases.get(&db)) || self.suspects.contains(&key) {
            Guard::Unknown
        } else {
            Guard::Free
        }
    }

    /// Starts over with the guards that the target holds.
    pub fn set_guards(&mut self, guards: Guards) {
        self.until = guards.until();
        self.suspects = guards.keys.iter().filter(|(_, at)| at.0 == 0).map(|(key, _)| key.clone()).collect();
        self.guards = guards;
    }

    /// These were copied, or are none of the job's.
    pub fn trust(&mut self, keys: &[CopyKey]) {
        keys.iter().for_each(|key| _ = self.suspects.remove(&(key.db, key.key.clone())));
    }

    pub fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Keys that are to be copied as soon as may be, at most `count` of them.
    pub fn suspects(&self, count: usize) -> Vec<(u32, Vec<u8>)> {
        self.suspects.iter().take(count).cloned().collect()
    }

    /// The guards of keys, and then of databases, that stand behind `offset` and those of keys that can't be trusted.
    pub fn guards_behind(&self, offset: ReplOffset) -> Guards {
        let behind = |at: &ReplOffset| *at > offset || at.0 == 0;
        let (keys, databases) = (self.guards.keys.iter(), self.guards.databases.iter());
        Guards {
            keys: keys.filter(|(_, at)| behind(at)).map(|(key, at)| (key.clone(), *at)).collect(),
            databases: databases.filter(|(_, at)| behind(at)).map(|(db, at)| (*db, *at)).collect(),
        }
    }

    /// The guards of a slot's keys that stand behind `offset`, and of those that can't be trusted.
    pub fn ahead_in(&self, slot: Slot, offset: ReplOffset) -> Vec<(Name, ReplOffset)> {
        if self.until <= offset && self.suspects.is_empty() {
            return Vec::new();
        }
        let ahead = self.guards.keys.iter().filter(|(_, at)| **at > offset || at.0 == 0);
        ahead.filter(|((_, key), _)| Slot::of(key) == slot).map(|(name, at)| (name.clone(), *at)).collect()
    }

    /// No guard reaches past this.
    pub fn until(&self) -> ReplOffset {
        self.until
    }

    /// `db` was emptied by the stream: what was copied into it is gone, and the units behind apply to nothing. Returns
    /// the guards that it had. A key that `stays` was copied behind that.
    pub fn forget(&mut self, db: Option<u32>, stays: impl Fn(&[u8]) -> bool) -> Guards {
        if !holds!("flush-drops-guards") {
            return Guards::default();
        }
        let emptied = |of: u32| db.is_none_or(|db| db == of) || !holds!("guards-by-database");
        self.suspects.retain(|(of, key)| !emptied(*of) || stays(key));
        Guards {
            keys: self.guards.keys.extract_if(|(of, key), _| emptied(*of) && !stays(key)).collect(),
            databases: self.guards.databases.extract_if(|of, _| emptied(*of)).collect(),
        }
    }

    /// Units on keys of `db` up to where the source's stream is now, which is returned, are to be answered by copies.
    /// `unit`: where the unit stands that is the reason.
    ///
    /// # Errors
    /// When the source can't be asked.
    pub fn doubt(&mut self, db: u32, unit: ReplOffset) -> Result<ReplOffset, CopyError> {
        let ((), offset) = self.ask_at(unit, async |side: &mut Side| Ok(((), side.position().await?)))?;
        self.guards.databases.insert(db, offset);
        self.until = self.until.max(offset);
        Ok(offset)
    }

    /// Reads keys from the source for the unit that ends at `unit`, all at one offset, at which they stand from then on.
    ///
    /// Returns when the stream has been received up to there: the answer is then one about this history.
    /// # Errors
    /// When the source can't be asked, or its stream doesn't come.
    pub fn read(&mut self, keys: &[(u32, Vec<u8>)], unit: ReplOffset) -> Result<(Vec<Found>, ReplOffset), CopyError> {
        let asked: Vec<(u32, &[u8])> = keys.iter().map(|(db, key)| (*db, &key[..])).collect();
        let (found, offset) = self.ask_at(unit, async |side: &mut Side| side.read_keys(&asked).await)?;
        self.until = self.until.max(offset);
        self.guards.keys.extend(keys.iter().map(|key| (key.clone(), offset)));
        self.suspects.retain(|key| !keys.contains(key));
        Ok((found, offset))
    }

    /// What the source says of a command; `None` where it may not be asked.
    ///
    /// # Errors
    /// When it can't be reached.
    pub fn command_info(&mut self, name: &[u8]) -> Result<Option<Reply>, CopyError> {
        match self.retrying(async |side: &mut Side| side.ask(&[&b"COMMAND"[..], b"INFO", name]).await) {
            Err(CopyError::Net(conn::Error::Refused { .. })) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// What the source says of a time series now; `None` where there is none, or it may not be asked.
    ///
    /// # Errors
    /// When it can't be reached.
    pub fn series_info(&mut self, db: u32, key: &[u8]) -> Result<Option<Reply>, CopyError> {
        match self.retrying(async |side: &mut Side| side.ask_in(db, &[&b"TS.INFO"[..], key]).await) {
            Err(CopyError::Net(error @ conn::Error::Refused { .. }))
                if !self.redirections || !is_redirection(&error) =>
            {
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// Reads keys of a slot that was in motion: who asks remembers where they stand. `None` if they are elsewhere.
    ///
    /// # Errors
    /// As for [`CopyKeys::read`].
    pub fn read_moved(
        &mut self,
        keys: &[(u32, Vec<u8>)],
        unit: ReplOffset,
    ) -> Result<Option<(Vec<Found>, ReplOffset)>, CopyError> {
        let asked: Vec<(u32, &[u8])> = keys.iter().map(|(db, key)| (*db, &key[..])).collect();
        match self.ask_at(unit, async |side: &mut Side| side.read_keys(&asked).await) {
            Err(error) if error.is_redirection() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// These keys were copied, and stand further ahead than the stream.
    pub fn stand(&mut self, copied: Vec<(Name, ReplOffset)>) {
        self.until = copied.iter().map(|(_, at)| *at).fold(self.until, ReplOffset::max);
        self.guards.keys.extend(copied);
    }

    /// Lists the keys that the source holds of a slot.
    ///
    /// # Errors
    /// As for [`CopyKeys::read`].
    pub fn list_slot(&mut self, slot: Slot, unit: ReplOffset) -> Result<(Vec<Name>, ReplOffset), CopyError> {
        self.ask_at(unit, async |side: &mut Side| side.list_slot(slot).await)
    }

    /// Waits for something else than the source.
    ///
    /// # Errors
    /// When the stream ends meanwhile.
    pub fn pause(&self, wait: Duration) -> Result<(), CopyError> {
        self.asking.pause(wait).ok_or(CopyError::Ended)
    }

    /// Asks for something as it is at an offset, at or behind `unit`, and returns when the stream was received up to there.
    fn ask_at<T>(
        &mut self,
        unit: ReplOffset,
        mut ask: impl AsyncFnMut(&mut Side) -> Result<(T, Position), conn::Error>,
    ) -> Result<(T, ReplOffset), CopyError> {
        let until = Instant::now() + self.retry_for.unwrap_or(Duration::MAX / 4).max(STREAM_WAIT);
        loop {
            let replid = self.asking.feed().replid().ok_or(CopyError::NoOffsets)?;
            let (found, position) = self.retrying(&mut ask)?;
            // A primary that has become a replica of the next may lag behind the stream that comes from that one.
            let is_new = position.offset >= unit || !holds!("answer-not-before-unit");
            if is_new && (!holds!("answer-of-this-history") || self.is_of_this_history(position, replid)) {
                return Ok((found, position.offset));
            }
            if Instant::now() > until {
                return Err(CopyError::Behind(position.offset));
            }
            tracing::debug!(offset = %position.offset, "what was asked at an offset is old or of another history: asking again");
            // The primary may be another server since; the one that was asked needn't notice.
            self.side.close();
            self.asking.pause(ASK_AGAIN).ok_or(CopyError::Ended)?;
        }
    }

    /// Waits for the stream to reach an answer's position; true if it is one of the history that was received when it
    /// was asked for.
    fn is_of_this_history(&self, answer: Position, replid: ReplId) -> bool {
        let feed = self.asking.feed();
        let reached = feed.stream.wait_written(answer.offset.0, STREAM_WAIT);
        // Before 4.0 a server doesn't say; its history ends with its process, and with it this one.
        reached && answer.replid.is_none_or(|of| of == replid) && feed.replid() == Some(replid)
    }

    /// Lists keys of a source database, a page at a time; `cursor` is `0` at the start and behind the last.
    ///
    /// # Errors
    /// As for [`CopyKeys::read`].
    pub fn scan(&mut self, db: u32, cursor: &mut Vec<u8>, unit: ReplOffset) -> Result<Vec<Vec<u8>>, CopyError> {
        let from = cursor.clone();
        let ((keys, next), _) = self.ask_at(unit, async |side: &mut Side| {
            // What is listed behind that is at least as new.
            let (position, mut cursor) = (side.position().await?, from.clone());
            let keys = side.scan(db, &mut cursor).await?;
            Ok(((keys, cursor), position))
        })?;
        *cursor = next;
        Ok(keys)
    }

    /// The source's databases that hold keys now.
    ///
    /// # Errors
    /// As for [`CopyKeys::read`].
    pub fn databases(&mut self, unit: ReplOffset) -> Result<Vec<u32>, CopyError> {
        let told = self.ask_at(unit, async |side: &mut Side| {
            let info = side.info().await?;
            let position = position(&info);
            Ok((info, position))
        });
        let info = match told {
            // A source that has no offsets has no former primaries, either.
            Err(CopyError::NoOffsets) => self.retrying(async |side: &mut Side| side.info().await)?,
            told => told?.0,
        };
        Ok(info.keyspace().into_iter().map(|(db, _)| db).collect())
    }

    /// Asks the source, again and again while it can't be reached and the session goes on.
    fn retrying<T>(&mut self, mut ask: impl AsyncFnMut(&mut Side) -> Result<T, conn::Error>) -> Result<T, CopyError> {
        let mut backoff = Backoff::new(self.retry_for);
        let mut told = false;
        loop {
            let Some(answer) = self.asking.ask(ask(&mut self.side)) else {
                // What it may still answer would be taken for the answer to the next question.
                self.side.close();
                return Err(CopyError::Ended);
            };
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if self.redirections && is_redirection(&error) {
                return Err(error.into());
            }
            let wait = if error.is_passing() { backoff.failed(Instant::now()) } else { None };
            let Some(wait) = wait else { return Err(error.into()) };
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = %error, "the source doesn't tell what keys hold: trying on");
            }
            self.asking.pause(wait).ok_or(CopyError::Ended)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Side as End;
    use crate::net::conn::Server;
    use crate::net::endpoint::HostPort;
    use crate::pipeline::feed::{Budget, Feed};
    use std::sync::Arc;

    #[test]
    fn keys_of_a_slot_that_stand_ahead_and_those_that_cannot_be_trusted_are_told() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let feed = Feed::new(None, ReplOffset(0), None, &Budget { memory_bytes: 1 << 20, spool: None });
        let address = HostPort { host: "unasked".into(), port: 1 };
        let server = Server { side: End::Source, address, user: None, password: None, tls: None };
        let asking = Asking::new(runtime.handle().clone(), Arc::new(feed));
        let mut keys = CopyKeys::new(Side::new(server.into()), asking, None);
        let name = |key: &str| (0, key.as_bytes().to_vec());
        let all = [("{a}ahead", 30), ("{a}behind", 10), ("{a}suspect", 0), ("{b}ahead", 30)];
        let guards = Guards { keys: all.map(|(key, at)| (name(key), ReplOffset(at))).into(), ..Guards::default() };
        keys.set_guards(guards);
        let mut told = keys.ahead_in(Slot::of(b"{a}"), ReplOffset(10));
        told.sort();
        assert_eq!(told, [(name("{a}ahead"), ReplOffset(30)), (name("{a}suspect"), ReplOffset(0))]);
        assert_eq!(keys.ahead_in(Slot::of(b"{b}"), ReplOffset(30)), []);
    }
}
