//! Joins a server as a replica and prints the commands of its stream, each with the offset behind it:
//! `cargo run --release --example tail_commands -- redis://127.0.0.1:6379`
//!
//! The snapshot that comes first is thrown away. Nothing is written to the server.

use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use keyferry::args::Args;
use keyferry::journal::{Journal, Read};
use keyferry::net::Side;
use keyferry::net::conn::Server;
use keyferry::net::endpoint::Endpoint;
use keyferry::net::tls::{TlsOptions, connector};
use keyferry::offset::ReplOffset;
use keyferry::resp::command::{Parsed, Parser};
use keyferry::source::Ack;
use keyferry::source::link::{Link, Start};

const JOURNAL_BYTES: usize = 16 << 20;
const READ_BYTES: usize = 256 << 10;
const ARG_SHOWN_MAX: usize = 40;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("usage: tail_commands redis://[[user]:password@]host[:port]")?;
    let server = server(&Endpoint::parse(&url)?)?;
    let (mut link, start) = Link::open(&server, None).await?;
    let Start::Full { offset, .. } = start else { return Err("a first PSYNC gave no snapshot".into()) };

    let framing = link.framing().await?;
    let snapshot = Arc::new(Journal::new(0, JOURNAL_BYTES, None));
    let reader = read(&snapshot, 0, |bytes| {
        bytes.clear();
        Ok(())
    });
    link.snapshot(framing, &snapshot, |_| {}).await?;
    reader.join().map_err(|_| "the reader died")??;
    eprintln!("snapshot skipped: {} bytes, offset {offset}", snapshot.written());

    let stream = Arc::new(Journal::new(offset.0, JOURNAL_BYTES, None));
    let ack = Arc::new(Ack::new(false));
    let mut tail = Tail { parser: Parser::new(), offset, ack: Arc::clone(&ack) };
    let reader = read(&stream, offset.0, move |bytes| tail.print(bytes));
    let ended = tokio::select! {
        error = link.follow(&stream, &ack, |_, _| {}) => Err(error.into()),
        _ = tokio::signal::ctrl_c() => Ok(()),
        result = tokio::task::spawn_blocking(move || reader.join()) => result?.map_err(|_| "the reader died")?,
    };
    stream.end();
    ended
}

fn server(endpoint: &Endpoint) -> Result<Server, Failure> {
    let address = endpoint.hosts.first().cloned().ok_or("no host")?;
    let options = TlsOptions::default();
    let tls = if endpoint.tls { Some((connector(Side::Source, &options)?, options)) } else { None };
    let (user, password) = (endpoint.user.clone(), endpoint.password.clone());
    Ok(Server { side: Side::Source, address, user, password, tls })
}

/// Reads a journal to its end; `each` gets all bytes that it has left so far, and takes from their front what it can.
fn read(
    journal: &Arc<Journal>,
    start: u64,
    mut each: impl FnMut(&mut Vec<u8>) -> Result<(), Failure> + Send + 'static,
) -> thread::JoinHandle<Result<(), Failure>> {
    let journal = Arc::clone(journal);
    thread::spawn(move || {
        let (mut at, mut bytes) = (start, Vec::new());
        loop {
            match journal.read(at, &mut bytes, READ_BYTES, Duration::from_secs(1))? {
                Read::Bytes(n) => at += n as u64,
                Read::Nothing => continue,
                Read::End => return Ok(()),
            }
            journal.release(at);
            each(&mut bytes)?;
        }
    })
}

struct Tail {
    parser: Parser,
    offset: ReplOffset,
    ack: Arc<Ack>,
}

impl Tail {
    /// Prints the whole commands at the front of `bytes` and takes them away.
    fn print(&mut self, bytes: &mut Vec<u8>) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        let mut taken = 0;
        while let Some(parsed) = self.parser.parse(&bytes[taken..])? {
            match parsed {
                // It keeps the link alive and doesn't count.
                Parsed::Newline => taken += 1,
                Parsed::Command { len } => {
                    self.offset = self.offset.plus(len as u64);
                    let args = self.parser.args(&bytes[taken..]);
                    writeln!(out, "{} {}", self.offset, shown(args))?;
                    taken += len;
                }
            }
        }
        bytes.drain(..taken);
        self.ack.set_applied(self.offset);
        Ok(out.flush()?)
    }
}

fn shown(args: Args<'_>) -> String {
    let shown = args.iter().map(|arg| match arg.get(..ARG_SHOWN_MAX) {
        Some(head) => format!("\"{}…\"", head.escape_ascii()),
        None => format!("\"{}\"", arg.escape_ascii()),
    });
    shown.collect::<Vec<_>>().join(" ")
}
