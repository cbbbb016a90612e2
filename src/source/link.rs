//! The replication link: joins the source as a replica, takes the snapshot, then the stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Ack, Error};
use crate::clock::now_ms;
use crate::journal::Journal;
use crate::net::conn::{Conn, Server};
use crate::offset::{ReplId, ReplOffset};
use crate::repl::handshake::{self, Refused};
use crate::repl::resync::{Framing, Piece, PsyncAnswer, SnapshotEnd, framing, psync_answer};
use crate::resp::encode;
use crate::resp::limits::LINE_BYTES_MAX;
use crate::resp::reply::Reply;

/// How often the source hears from us. It drops a replica that is silent for its `repl-timeout`, 60 s by default.
const ACK_INTERVAL: Duration = Duration::from_secs(1);

/// The same until the stream begins. Behind a diskless transfer the source holds it back until an ACK comes, and passes over
/// those that come before it has reaped the child that sent the snapshot; what is written meanwhile fills its output buffer.
/// Source: redis 7.0 src/replication.c, repl_start_cmd_stream_on_ack.
const FIRST_ACK_INTERVAL: Duration = Duration::from_millis(50);

/// So many first ACKs are enough for a source that has nothing to send.
const FIRST_ACKS_MAX: u32 = 100;

/// A source that sends nothing for so long is taken for gone; it pings every 10 s, and while it forks every second.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Bytes read from the socket at a time.
const READ_BYTES: usize = 256 * 1024;

/// What the source agreed to.
#[derive(Debug)]
pub enum Start {
    /// It will send a snapshot that stands at this offset. Without a replid (SYNC) it can't be resumed.
    Full { replid: Option<ReplId>, offset: ReplOffset },
    /// It goes on with the stream where we asked; under this id.
    Partial { replid: ReplId },
}

/// A connection that the source takes for a replica's.
#[derive(Debug)]
pub struct Link {
    conn: Conn,
    buf: Vec<u8>,
    /// The bytes of `buf` that aren't read yet.
    unread: std::ops::Range<usize>,
}

impl Link {
    /// Joins `server` as a replica; asks to go on behind `resume`, where there is one.
    ///
    /// # Errors
    /// When the source can't be reached or refuses.
    pub async fn open(server: &Server, resume: Option<(ReplId, ReplOffset)>) -> Result<(Link, Start), Error> {
        let mut link = Link::connect(server).await?;
        let (replid, next) = match resume {
            Some((replid, offset)) => (replid.to_string(), offset.plus(1).to_string()),
            None => ("?".to_owned(), "-1".to_owned()),
        };
        link.send_command(&[b"PSYNC", replid.as_bytes(), next.as_bytes()]).await?;
        let line = link.line().await?;
        let address = link.conn.address().to_owned();
        match psync_answer(&line) {
            PsyncAnswer::FullResync { replid, offset } => Ok((link, Start::Full { replid: Some(replid), offset })),
            PsyncAnswer::Continue { replid } => match replid.or(resume.map(|(id, _)| id)) {
                Some(replid) => Ok((link, Start::Partial { replid })),
                None => Err(Error::Unknown { address, words: "+CONTINUE to a first PSYNC".into() }),
            },
            PsyncAnswer::UnknownCommand(words) => {
                tracing::warn!(source = address, error = words, "no PSYNC: falling back to SYNC");
                let mut link = Link::connect(server).await?;
                link.send_command(&[b"SYNC"]).await?;
                // SYNC has no status line: its answer is the snapshot's first line, or an error.
                Ok((link, Start::Full { replid: None, offset: ReplOffset(0) }))
            }
            PsyncAnswer::Later(words) => Err(Error::Later { address, words }),
            PsyncAnswer::NoAuth(words) => Err(Error::NoAuth { address, words }),
            PsyncAnswer::NoPermission(words) => Err(Error::NoPermission { address, words }),
            PsyncAnswer::Other(words) => Err(Error::Unknown { address, words }),
        }
    }

    async fn connect(server: &Server) -> Result<Link, Error> {
        let mut conn = server.connect().await?;
        for step in handshake::STEPS {
            if let Reply::Error(words) = conn.call(step).await? {
                let address = conn.address().to_owned();
                match handshake::refused(&words) {
                    Refused::Harmless => tracing::debug!(source = address, error = words, "handshake step refused"),
                    Refused::NoAuth => return Err(Error::NoAuth { address, words }),
                    Refused::Later => return Err(Error::Later { address, words }),
                    Refused::NoPermission => return Err(Error::NoPermission { address, words }),
                }
            }
        }
        Ok(Link { conn, buf: vec![0; READ_BYTES], unread: 0..0 })
    }

    /// Waits for the first line of the snapshot; newlines keep the link alive while the source forks.
    ///
    /// # Errors
    /// When the source fails to save, or is lost.
    pub async fn framing(&mut self) -> Result<Framing, Error> {
        let line = self.line().await?;
        framing(&line).ok_or_else(|| {
            let (address, words) = (self.conn.address().to_owned(), String::from_utf8_lossy(&line).into_owned());
            match psync_answer(&line) {
                PsyncAnswer::UnknownCommand(_) => Error::NoReplication { address, words },
                PsyncAnswer::Later(_) => Error::Later { address, words },
                PsyncAnswer::NoAuth(_) => Error::NoAuth { address, words },
                PsyncAnswer::NoPermission(_) => Error::NoPermission { address, words },
                _ => Error::Unknown { address, words },
            }
        })
    }

    /// Moves the snapshot into `journal`, framing mark included, and ends the journal.
    ///
    /// `received` hears of every piece: how many bytes have come.
    /// # Errors
    /// When the source breaks off, or the spool can't take more.
    pub async fn snapshot(
        &mut self,
        framing: Framing,
        journal: &Arc<Journal>,
        mut received: impl FnMut(u64),
    ) -> Result<(), Error> {
        let mut end = SnapshotEnd::new(framing);
        loop {
            if self.unread.is_empty() && framing != Framing::Length(end.received()) && !self.fill().await? {
                return Err(Error::SnapshotCut { address: self.conn.address().to_owned(), bytes: end.received() });
            }
            let piece = self.buf.get(self.unread.clone()).unwrap_or_default();
            let (taken, last) = match end.take(piece) {
                Piece::Middle => (piece.len(), false),
                Piece::Last(taken) => (taken, true),
            };
            let piece = piece.get(..taken).unwrap_or_default();
            received(end.received());
            journal.append(piece, now_ms()).await?;
            self.unread.start += taken;
            if last {
                journal.end();
                return Ok(());
            }
        }
    }

    /// Moves the stream into `journal` until the link breaks, and tells the source every second how far `ack` is.
    ///
    /// `received` hears of every piece: the position behind it, and whether there was no room for it.
    pub async fn follow(&mut self, journal: &Arc<Journal>, ack: &Ack, mut received: impl FnMut(u64, bool)) -> Error {
        let mut tick = interval(ACK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first_acks = if holds!("first-acks-often") { FIRST_ACKS_MAX } else { 0 };
        let mut first = interval(FIRST_ACK_INTERVAL);
        first.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            let step = if self.unread.is_empty() {
                tokio::select! {
                    filled = self.conn.read(&mut self.buf) => match filled {
                        Ok(0) => return self.lost(),
                        Ok(n) => { self.unread = 0..n; heard = Instant::now(); first_acks = 0; Step::Read }
                        Err(error) => return error.into(),
                    },
                    _ = tick.tick() => Step::Ack,
                    _ = first.tick(), if first_acks > 0 => { first_acks -= 1; Step::Ack }
                    () = ack.due() => Step::Ack,
                }
            } else {
                let piece = self.buf.get(self.unread.clone()).unwrap_or_default();
                let full = journal.is_full(piece.len());
                if full {
                    received(journal.written(), true);
                }
                tokio::select! {
                    appended = journal.append(piece, now_ms()) => {
                        if let Err(error) = appended {
                            return error.into();
                        }
                        self.unread = 0..0;
                        received(journal.written(), false);
                        heard = Instant::now();
                        Step::Read
                    }
                    _ = tick.tick() => Step::Ack,
                    () = ack.due() => Step::Ack,
                }
            };
            if let Step::Ack = step {
                if let Err(error) = self.ack(ack.offset(journal.written())).await {
                    return error;
                }
                if heard.elapsed() > SILENCE_MAX && self.unread.is_empty() {
                    return self.silent();
                }
            }
        }
    }

    async fn ack(&mut self, offset: ReplOffset) -> Result<(), Error> {
        self.send_command(&[b"REPLCONF", b"ACK", offset.to_string().as_bytes()]).await
    }

    async fn send_command(&mut self, args: &[&[u8]]) -> Result<(), Error> {
        let mut out = Vec::new();
        encode::command(&mut out, args);
        Ok(self.conn.send(&out).await?)
    }

    /// The next line that isn't empty, without its CR LF.
    async fn line(&mut self) -> Result<Vec<u8>, Error> {
        let mut line = Vec::new();
        loop {
            if self.unread.is_empty() && !self.fill().await? {
                return Err(self.lost());
            }
            let unread = self.buf.get(self.unread.clone()).unwrap_or_default();
            let end = memchr::memchr(b'\n', unread);
            line.extend_from_slice(unread.get(..end.unwrap_or(unread.len())).unwrap_or_default());
            self.unread.start += end.map_or(unread.len(), |end| end + 1);
            if end.is_some() {
                while line.last() == Some(&b'\r') {
                    line.pop();
                }
                if !line.is_empty() {
                    return Ok(line);
                }
            }
            if line.len() > LINE_BYTES_MAX {
                let (address, words) = (self.conn.address().to_owned(), "a line without end".to_owned());
                return Err(Error::Unknown { address, words });
            }
        }
    }

    /// Reads more; false at the connection's end.
    async fn fill(&mut self) -> Result<bool, Error> {
        match timeout(SILENCE_MAX, self.conn.read(&mut self.buf)).await {
            Ok(read) => {
                let n = read?;
                self.unread = 0..n;
                Ok(n > 0)
            }
            Err(_) => Err(self.silent()),
        }
    }

    fn lost(&self) -> Error {
        self.conn.lost(std::io::ErrorKind::UnexpectedEof.into()).into()
    }

    fn silent(&self) -> Error {
        Error::Silent { address: self.conn.address().to_owned(), seconds: SILENCE_MAX.as_secs() }
    }
}

enum Step {
    Read,
    Ack,
}
