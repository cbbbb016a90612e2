//! Matching the answers to a transaction.

use super::parts::{Span, expiry_command};
use crate::resp::reply::Scanned;

/// What became of a flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Applied,
    /// Nothing of it was applied. `at` is the place between MULTI and EXEC that was refused, where the server said.
    Refused {
        words: String,
        at: Option<usize>,
    },
    /// All was applied but the commands at these places.
    AppliedBut(Vec<(usize, String)>),
}

/// The answers can't be those of what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the target's answers don't match what was sent")]
pub struct OutOfStep;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Multi,
    Queueing,
    Exec,
    Results,
}

/// The answers to one transaction, as they come.
#[derive(Debug, Default)]
pub struct Answers {
    queued: usize,
    seen: usize,
    stage: Stage,
    /// MULTI was sent alone: if it is refused, nothing ran.
    pub alone: bool,
    refused: Option<(usize, String)>,
    errors: Vec<(usize, String)>,
    /// Places between MULTI and EXEC that were answered with 0.
    zeros: Vec<usize>,
}

impl Answers {
    /// `queued`: how many commands stand between MULTI and EXEC.
    pub fn to(queued: usize) -> Self {
        Answers { queued, ..Answers::default() }
    }

    /// Begins anew with another transaction.
    pub fn reset(&mut self, queued: usize) {
        (self.queued, self.seen, self.stage, self.alone) = (queued, 0, Stage::Multi, false);
        self.refused = None;
        self.errors.clear();
        self.zeros.clear();
    }

    /// For commands that were sent without MULTI and EXEC.
    #[cfg(test)]
    pub fn begin_at_results(&mut self) {
        self.stage = Stage::Results;
    }

    /// True when MULTI was taken.
    pub fn is_begun(&self) -> bool {
        self.stage != Stage::Multi
    }

    /// Takes the next answer; returns the outcome with the last.
    /// # Errors
    /// When it can't be an answer to this transaction.
    pub fn answer(&mut self, scanned: Scanned<'_>) -> Result<Option<Outcome>, OutOfStep> {
        match (self.stage, scanned) {
            (Stage::Multi, Scanned::Status(b"OK")) => {
                self.stage = if self.queued == 0 { Stage::Exec } else { Stage::Queueing };
                Ok(None)
            }
            (Stage::Multi, Scanned::Error(words)) if self.alone => {
                Ok(Some(Outcome::Refused { words: text(words), at: None }))
            }
            // Without its MULTI the commands behind it run bare: the records decide what is to be sent again.
            (Stage::Multi, _) => Err(OutOfStep),
            (Stage::Queueing, Scanned::Status(b"QUEUED")) => Ok(self.queue_answered()),
            (Stage::Queueing, Scanned::Error(words)) => {
                if self.refused.is_none() {
                    self.refused = Some((self.seen, text(words)));
                }
                Ok(self.queue_answered())
            }
            (Stage::Exec, Scanned::Error(words)) => {
                let (at, words) = match self.refused.take() {
                    Some((at, words)) => (Some(at), words),
                    None => (None, text(words)),
                };
                Ok(Some(Outcome::Refused { words, at }))
            }
            (Stage::Exec, Scanned::Open(count)) if count == self.queued && self.refused.is_none() => {
                self.stage = Stage::Results;
                self.seen = 0;
                Ok((count == 0).then_some(Outcome::Applied))
            }
            (Stage::Results, Scanned::Open(_)) => Err(OutOfStep),
            (Stage::Results, result) => {
                match result {
                    Scanned::Error(words) => self.errors.push((self.seen, text(words))),
                    Scanned::Integer(0) => self.zeros.push(self.seen),
                    _ => {}
                }
                self.seen += 1;
                Ok((self.seen == self.queued).then(|| self.end()))
            }
            _ => Err(OutOfStep),
        }
    }

    /// The commands among `units` that found no key, though on the source they did: PEXPIREAT and PERSIST that answered
    /// 0. Each with its target database; `db` is the connection's when they were sent.
    pub fn lost_keys<'a>(&self, mut db: u32, units: impl Iterator<Item = Span<'a>>) -> Vec<(u32, Vec<u8>)> {
        let mut lost = Vec::new();
        let mut zeros = self.zeros.iter().copied().peekable();
        let mut at = 0;
        for span in units {
            if zeros.peek().is_none() {
                break;
            }
            for (i, segment) in span.segments().iter().enumerate() {
                at += usize::from(segment.db != db);
                db = segment.db;
                let end = at + segment.commands as usize;
                while zeros.next_if(|zero| *zero < at).is_some() {}
                // Most flushes have none, so nearly no segment is looked into.
                if zeros.peek().is_some_and(|zero| *zero < end) {
                    let bytes = span.chunk.slice(span.from + i, span.from + i + 1);
                    while let Some(zero) = zeros.next_if(|zero| *zero < end) {
                        lost.extend(expiry_command(bytes, zero - at).map(|command| (db, command)));
                    }
                }
                at = end;
            }
        }
        lost
    }

    fn queue_answered(&mut self) -> Option<Outcome> {
        self.seen += 1;
        if self.seen == self.queued {
            self.stage = Stage::Exec;
        }
        None
    }

    fn end(&mut self) -> Outcome {
        match std::mem::take(&mut self.errors) {
            errors if errors.is_empty() => Outcome::Applied,
            errors => Outcome::AppliedBut(errors),
        }
    }
}

fn text(words: &[u8]) -> String {
    String::from_utf8_lossy(words).into_owned()
}
