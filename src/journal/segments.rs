//! Bytes on disk, addressed by position: what memory has no room for.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A segment is ended when it is this long; one that is covered is deleted whole.
const SEGMENT_BYTES: u64 = 64 << 20;

/// How the files' names end.
const SUFFIX: &str = "journal";

/// Where segments are and how much they may take.
#[derive(Debug, Clone)]
pub struct Spool {
    pub dir: PathBuf,
    pub limit: SpoolLimit,
    /// What the files' names begin with.
    pub name: &'static str,
}

/// How much all that share it may have on disk together. A clone shares it.
#[derive(Debug, Clone)]
pub struct SpoolLimit {
    bytes_max: u64,
    used: Arc<AtomicU64>,
}

impl SpoolLimit {
    pub fn new(bytes_max: u64) -> Self {
        SpoolLimit { bytes_max, used: Arc::default() }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes on disk now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Spool {
    /// Removes what a dead run of the job left in its folder: its bytes can be had from the source again.
    ///
    /// # Errors
    /// When the folder is there and can't be read or changed.
    pub fn remove_stale(dir: &Path) -> io::Result<()> {
        let files = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            files => files?,
        };
        for file in files {
            let path = file?.path();
            if path.extension().is_some_and(|e| e == SUFFIX) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Segment {
    start: u64,
    end: u64,
    file: Arc<File>,
    path: PathBuf,
}

/// The segments in order, without gaps.
#[derive(Debug, Default)]
pub struct Segments {
    list: VecDeque<Segment>,
    /// Where its bytes are counted, once there are any.
    limit: Option<SpoolLimit>,
}

/// Bytes of a segment: where to read them.
pub struct Place {
    file: Arc<File>,
    at: u64,
    len: usize,
}

impl Segments {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The position of the first byte on disk.
    pub fn start(&self) -> Option<u64> {
        self.list.front().map(|s| s.start)
    }

    pub fn bytes(&self) -> u64 {
        self.list.iter().map(|s| s.end - s.start).sum()
    }

    /// The file that the next bytes, which begin at `position`, go to: the last segment's, or a new one.
    ///
    /// # Errors
    /// When the folder or the file can't be made.
    pub fn file_for(&mut self, spool: &Spool, position: u64) -> io::Result<Arc<File>> {
        if let Some(last) = self.list.back()
            && last.end - last.start < SEGMENT_BYTES
        {
            return Ok(Arc::clone(&last.file));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&spool.dir)?;
        let path = spool.dir.join(format!("{}-{position:020}.{SUFFIX}", spool.name));
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).mode(0o600).open(&path)?;
        let file = Arc::new(file);
        self.limit = Some(spool.limit.clone());
        self.list.push_back(Segment { start: position, end: position, file: Arc::clone(&file), path });
        Ok(file)
    }

    /// Says that `bytes` more are in the file that [`Segments::file_for`] gave.
    pub fn written(&mut self, bytes: u64) {
        if let Some(last) = self.list.back_mut() {
            last.end += bytes;
            if let Some(limit) = &self.limit {
                limit.used.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Where the bytes from `position` on are, at most `bytes_max` of them; `None` if they aren't on disk.
    pub fn place(&self, position: u64, bytes_max: usize) -> Option<Place> {
        let segment = self.list.iter().find(|s| s.start <= position && position < s.end)?;
        let len = usize::try_from(segment.end - position).unwrap_or(usize::MAX).min(bytes_max);
        Some(Place { file: Arc::clone(&segment.file), at: position - segment.start, len })
    }

    /// Deletes the segments that lie before `position`.
    pub fn release(&mut self, position: u64) {
        while self.list.front().is_some_and(|s| s.end <= position && s.end > s.start) {
            self.delete_first();
        }
    }

    fn delete_first(&mut self) {
        let Some(segment) = self.list.pop_front() else { return };
        if let Some(limit) = &self.limit {
            limit.used.fetch_sub(segment.end - segment.start, Ordering::Relaxed);
        }
        if let Err(error) = fs::remove_file(&segment.path) {
            tracing::warn!(file = %segment.path.display(), error = %error, "a spool file can't be removed");
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        while !self.list.is_empty() {
            self.delete_first();
        }
    }
}

impl Place {
    /// Appends the bytes to `out`; returns how many.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn read(&self, out: &mut Vec<u8>) -> io::Result<usize> {
        let before = out.len();
        out.resize(before + self.len, 0);
        let result = self.file.read_exact_at(out.get_mut(before..).unwrap_or_default(), self.at);
        if result.is_err() {
            out.truncate(before);
        }
        result.map(|()| self.len)
    }
}

/// Writes blocks to the end of `file`.
///
/// # Errors
/// When the disk is full or the file can't be written.
pub fn write(file: &File, blocks: &[Arc<Vec<u8>>]) -> io::Result<()> {
    let mut file = file;
    blocks.iter().try_for_each(|block| file.write_all(block))
}
