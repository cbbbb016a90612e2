//! What may be buffered, divided among the shards of a job.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tokio::sync::watch;

use super::feed::Budget;
use crate::config::valid::Job;
use crate::journal::SpoolLimit;
use crate::target::wire::Rate;

/// How the folders of shards but the first are named, with the number behind.
const FOLDER: &str = "shard-";

/// What the queues of a shard hold beside its journal. Those of the first are beside `--memory`.
const QUEUES_BYTES: usize = 10 << 20;

/// A shard has at least this part of what it would have without the others' queues.
const PART_MIN: usize = 4;

/// The job's memory, disk and rate. Memory and rate are divided evenly, so that no shard can hold up the others; the disk
/// is shared.
#[derive(Debug)]
pub struct Shares {
    memory_bytes: usize,
    spool: Option<(PathBuf, SpoolLimit)>,
    /// Of all together, and of each shard now.
    rate: Option<(u64, Rate)>,
    shards: watch::Sender<usize>,
}

impl Shares {
    pub fn new(job: &Job, shards: usize) -> Self {
        let each = |all: u64| (all, Rate::new(all / shards.max(1) as u64));
        Shares {
            rate: job.rate_bytes_s.map(each),
            memory_bytes: usize::try_from(job.memory_bytes).unwrap_or(usize::MAX),
            spool: job.spool_dir.clone().map(|dir| (dir, SpoolLimit::new(job.spool_bytes))),
            shards: watch::Sender::new(shards),
        }
    }

    /// So many shards share from now on.
    pub fn set_shards(&self, shards: usize) {
        self.shards.send_replace(shards);
        if let Some((all, each)) = &self.rate {
            each.set(all / shards.max(1) as u64);
        }
    }

    /// The bytes a second to the target that each shard may send.
    pub fn rate(&self) -> Option<Rate> {
        self.rate.as_ref().map(|(_, each)| each.clone())
    }

    /// What a shard begins with; each has a folder of its own.
    pub fn budget(&self, shard: u32) -> Budget {
        let folder = |(dir, limit): (PathBuf, SpoolLimit)| match shard {
            0 => (dir, limit),
            shard => (dir.join(format!("{FOLDER}{shard}")), limit),
        };
        Budget { memory_bytes: self.memory(), spool: self.spool.clone().map(folder) }
    }

    /// The folders below `dir` that shards had.
    ///
    /// # Errors
    /// When the folder is there and can't be read.
    pub fn folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(FOLDER) && entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// The memory of one shard now.
    pub fn memory(&self) -> usize {
        share(self.memory_bytes, *self.shards.borrow())
    }

    /// Returns with the memory of one shard when that is another than `before`.
    ///
    /// Cancel-safe.
    pub async fn changed(&self, before: usize) -> usize {
        let changed = |shards: &usize| share(self.memory_bytes, *shards) != before;
        match self.shards.subscribe().wait_for(changed).await {
            Ok(shards) => share(self.memory_bytes, *shards),
            // The sender lives as long as this.
            Err(_) => before,
        }
    }
}

fn share(memory_bytes: usize, shards: usize) -> usize {
    let shards = shards.max(1);
    let beside = memory_bytes.saturating_sub(QUEUES_BYTES * (shards - 1));
    (beside / shards).max(memory_bytes / shards / PART_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn memory_of_all_shards_and_their_queues_is_that_of_the_job() {
        assert_eq!(share(256 * MIB, 1), 256 * MIB);
        assert_eq!(share(256 * MIB, 0), 256 * MIB);
        for shards in 2..20 {
            assert!(share(256 * MIB, shards) * shards + QUEUES_BYTES * (shards - 1) <= 256 * MIB, "{shards}");
        }
        assert_eq!(share(16 * MIB, 8), MIB / 2);
    }
}
