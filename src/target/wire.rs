//! One connection of a driver, and what is on its way through it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Error;
use crate::journal::{Argument, LARGE_BYTES_MIN, Large, STAND_IN_BYTES};
use crate::net::backoff::Backoff;
use crate::net::conn::Conn;
use crate::resp::reply::{self, Scanned, Scanner};
use crate::status::Counter;

/// Bytes read from a socket at a time.
pub const READ_BYTES: usize = 64 * 1024;

/// A larger buffer is given back when what it held is sent.
const OUT_BYTES_MAX: usize = 4 << 20;

/// A connection and what is on its way through it.
#[derive(Debug)]
pub struct Wire {
    pub conn: Conn,
    pub out: Vec<u8>,
    /// How much of `out` was written.
    written: usize,
    /// How much of it was looked through for stand-ins.
    searched: usize,
    large: Arc<Large>,
    /// A large argument that is being written in the place of the stand-in which ends at `written`.
    inserted: Option<Inserted>,
    pub reader: Reader,
    /// After a refusal: when to send again.
    pub resume_at: Option<Instant>,
    pub refusals: Backoff,
    /// True while the status line shows why this connection waits.
    pub waits: bool,
    /// When it last answered, or had nothing to answer.
    pub heard: Instant,
}

/// What stands before a stand-in as an argument.
const STAND_IN_HEADER: &[u8] = b"$32\r\n";
const _: () = assert!(STAND_IN_BYTES == 32);

/// How much of a large argument is held while it is written.
const INSERTED_BYTES: usize = LARGE_BYTES_MIN / 4;

/// A large argument on its way from the journal to the socket.
#[derive(Debug)]
struct Inserted {
    /// What of it is still in the journal.
    rest: Argument,
    bytes: Vec<u8>,
    written: usize,
}

impl Inserted {
    fn new(argument: Argument) -> Self {
        Inserted { rest: argument, bytes: format!("${}\r\n", argument.len).into_bytes(), written: 0 }
    }

    /// Reads on; false when all of it is written.
    fn fill(&mut self, large: &Large) -> Result<bool, Error> {
        if self.written < self.bytes.len() {
            return Ok(true);
        }
        self.bytes.clear();
        self.written = 0;
        if self.rest.len == 0 {
            return Ok(false);
        }
        let read = large.read(self.rest, &mut self.bytes, INSERTED_BYTES)? as u64;
        self.rest = Argument { position: self.rest.position + read, len: self.rest.len - read };
        Ok(true)
    }
}

/// Received bytes, as answers.
#[derive(Debug, Default)]
pub struct Reader {
    /// Those of a reply that isn't whole.
    input: Vec<u8>,
    scanner: Scanner,
}

impl Reader {
    /// Calls `take` with each answer that ends among the bytes that just came, until it says something; what is left then
    /// is lost.
    ///
    /// # Errors
    /// When the bytes are no answers.
    pub fn each<T>(
        &mut self,
        fresh: &[u8],
        mut take: impl FnMut(Scanned<'_>) -> Option<T>,
    ) -> Result<Option<T>, reply::Error> {
        let mut held = std::mem::take(&mut self.input);
        let mut input: &[u8] = if held.is_empty() {
            fresh
        } else {
            held.extend_from_slice(fresh);
            &held
        };
        loop {
            let (used, scanned) = self.scanner.scan(input)?;
            input = input.get(used..).unwrap_or_default();
            let Some(scanned) = scanned else { break };
            if let Some(said) = take(scanned) {
                return Ok(Some(said));
            }
        }
        self.input = input.to_vec();
        Ok(None)
    }
}

impl Wire {
    pub fn new(conn: Conn, large: &Arc<Large>) -> Self {
        Wire {
            conn,
            out: Vec::new(),
            written: 0,
            searched: 0,
            large: Arc::clone(large),
            inserted: None,
            reader: Reader::default(),
            resume_at: None,
            refusals: Backoff::new(None),
            waits: false,
            heard: Instant::now(),
        }
    }

    /// Writes what can be written without waiting; true if that was something.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, written: &Counter) -> Result<bool, Error> {
        let mut busy = false;
        while self.prepare()? {
            let bytes = match &self.inserted {
                Some(inserted) => inserted.bytes.get(inserted.written..),
                None => self.out.get(self.written..self.searched),
            };
            match self.conn.poll_write(cx, bytes.unwrap_or_default()) {
                Poll::Ready(Ok(n)) if n > 0 => {
                    match &mut self.inserted {
                        Some(inserted) => inserted.written += n,
                        None => self.written += n,
                    }
                    written.add(n as u64);
                    busy = true;
                }
                Poll::Ready(Ok(_)) => return Err(self.lost(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Err(error)) => return Err(self.lost(error)),
                Poll::Pending => return Ok(busy),
            }
        }
        if self.written > 0 {
            failpoint!("written");
        }
        self.out.clear();
        self.out.shrink_to(OUT_BYTES_MAX);
        (self.written, self.searched) = (0, 0);
        match self.conn.poll_flush(cx) {
            Poll::Ready(Err(error)) => Err(self.lost(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(busy),
        }
    }

    /// Sees to it that there is something to write; false if all is written.
    fn prepare(&mut self) -> Result<bool, Error> {
        if let Some(inserted) = &mut self.inserted {
            if inserted.fill(&self.large)? {
                return Ok(true);
            }
            self.inserted = None;
        }
        if self.written < self.searched {
            return Ok(true);
        }
        let rest = self.out.get(self.searched..).unwrap_or_default();
        let Some((at, argument)) = self.large.find(rest) else {
            self.searched = self.out.len();
            return Ok(self.written < self.searched);
        };
        let before = at.saturating_sub(STAND_IN_HEADER.len());
        if before > 0 {
            self.searched += before;
            return Ok(true);
        }
        self.searched += at + STAND_IN_BYTES;
        self.written = self.searched;
        self.inserted = Some(Inserted::new(argument));
        Ok(true)
    }

    /// How many bytes are to be written of what was added to `out` behind `before`.
    pub fn added(&self, before: usize) -> usize {
        let fresh = self.out.get(before..).unwrap_or_default();
        let large = usize::try_from(self.large.bytes_of(fresh)).unwrap_or(usize::MAX);
        fresh.len().saturating_add(large)
    }

    /// Reads what is there; `None` if nothing is.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        match self.conn.poll_read(cx, buf) {
            Poll::Ready(Ok(0)) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Ok(n)) => {
                self.heard = Instant::now();
                Ok(Some(n))
            }
            Poll::Ready(Err(error)) => Err(self.lost(error)),
            Poll::Pending => Ok(None),
        }
    }

    fn lost(&self, error: io::Error) -> Error {
        self.conn.lost(error).into()
    }
}

/// How many bytes a second one driver may send; all that share it hear of a change.
#[derive(Debug, Clone)]
pub struct Rate(Arc<AtomicU64>);

impl Rate {
    pub fn new(bytes_s: u64) -> Self {
        Rate(Arc::new(AtomicU64::new(bytes_s)))
    }

    pub fn set(&self, bytes_s: u64) {
        self.0.store(bytes_s, Ordering::Relaxed);
    }

    fn bytes_s(&self) -> f64 {
        self.0.load(Ordering::Relaxed).max(1) as f64
    }
}

/// A bound on the bytes a second, as a bucket that fills with time and may go below empty.
#[derive(Debug)]
pub struct Tokens {
    rate: Option<Rate>,
    level: f64,
    since: Instant,
}

impl Tokens {
    pub fn new(rate: Option<Rate>) -> Self {
        Tokens { rate, level: 0.0, since: Instant::now() }
    }

    pub fn available(&mut self, now: Instant) -> bool {
        let Some(rate) = self.rate.as_ref().map(Rate::bytes_s) else { return true };
        // At most a tenth of a second's worth is saved up.
        self.level = (self.level + now.duration_since(self.since).as_secs_f64() * rate).min(rate / 10.0);
        self.since = now;
        self.level >= 0.0
    }

    pub fn spend(&mut self, bytes: usize) {
        self.level -= if self.rate.is_some() { bytes as f64 } else { 0.0 };
    }

    /// When more may be sent, if not now.
    pub fn next(&self) -> Option<Instant> {
        let rate = self.rate.as_ref().filter(|_| self.level < 0.0)?.bytes_s();
        Some(self.since + Duration::from_secs_f64(-self.level / rate))
    }
}
