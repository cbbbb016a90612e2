//! Work on all primaries of a cluster that plain commands of one slot can't do.

use std::collections::BTreeSet;

use crate::delivery::refusal::{Refusal, refusal};
use crate::delivery::unit::Task;
use crate::net::info::Info;
use crate::resp::reply::Reply;
use crate::target::connect::Identity;
use crate::target::nodes::{Open, Target};
use crate::target::{Error, InScope, scan};

/// What a task is done with.
pub struct Work<'a> {
    pub target: &'a Target,
    pub identity: &'a Identity,
    pub in_scope: &'a InScope,
    pub key_hash: fn(u32, &[u8]) -> u64,
}

impl Work<'_> {
    /// Does a task as far as it concerns keys for which `is_due` holds; again from the beginning after an error.
    ///
    /// # Errors
    /// When a node can't be reached or refuses, slots are on the move, or another has the job.
    pub async fn perform(&self, task: &Task, is_due: impl Fn(&[u8]) -> bool) -> Result<(), Error> {
        for step in task.steps() {
            match step {
                Task::RemoveScope { databases, .. } => {
                    let doomed = |db, key: &[u8]| step.concerns(key) && is_due(key) && (self.in_scope)(db, key);
                    let wanted = |db: &u32| databases.as_ref().is_none_or(|list| list.contains(db));
                    let filled: Vec<u32> = self.filled().await?.into_iter().filter(wanted).collect();
                    scan::remove_in(self.target, self.identity, &filled, doomed).await?;
                    failpoint!("scope-removed");
                }
                Task::RemoveLeftovers { copied, .. } => {
                    let left = |db, key: &[u8]| !copied.contains(&(self.key_hash)(db, key));
                    let doomed = |db, key: &[u8]| step.concerns(key) && (self.in_scope)(db, key) && left(db, key);
                    let filled: Vec<u32> = self.filled().await?.into_iter().collect();
                    let removed = scan::remove_in(self.target, self.identity, &filled, doomed).await?;
                    failpoint!("leftovers-removed");
                    tracing::info!(keys = removed, "removed what an earlier copy had left");
                }
                Task::Everywhere { commands } => self.run(commands).await?,
                // Never one in the other.
                Task::InOrder(_) => return Err(Error::OutOfStep { address: self.target.to_string() }),
            }
        }
        Ok(())
    }

    /// The databases that hold keys anywhere.
    async fn filled(&self) -> Result<BTreeSet<u32>, Error> {
        let ask = async |open: &mut Open| {
            let reply = crate::target::ask(&mut open.conn, &[&b"INFO"[..], b"keyspace"]).await?;
            let info = Info::parse(reply.bytes().unwrap_or_default());
            Ok(info.keyspace().into_iter().map(|(db, _)| db).collect::<Vec<_>>())
        };
        Ok(self.target.each(None, ask).await?.into_iter().flatten().collect())
    }

    /// Runs commands on every primary; they were made so that running them twice is the same as once.
    async fn run(&self, commands: &[Vec<u8>]) -> Result<(), Error> {
        let run = async |open: &mut Open| {
            for raw in commands {
                open.conn.send(raw).await?;
                if let Reply::Error(words) = open.conn.reply().await?
                    && !(refusal(&words) == Refusal::ForGood && words.contains("ibrary not found"))
                {
                    let (name, _) = crate::delivery::parts::name_and_key(raw, 0);
                    return Err(crate::target::refused(&open.conn, name.as_bytes(), words));
                }
                failpoint!("everywhere-run");
            }
            Ok(())
        };
        self.target.each(Some(self.identity), run).await.map(|_| ())
    }
}
