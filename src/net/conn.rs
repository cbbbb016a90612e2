//! One connection to a server: opened, encrypted, authenticated; then calls, or raw bytes.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Side;
use super::endpoint::HostPort;
use super::permission;
use super::secret::Secret;
use super::tls::{self, TlsOptions};
use crate::resp::encode;
use crate::resp::reply::{self, Reply};

/// How long a server may take to accept a connection, TLS and password included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The part of the time for a connection that a server may take to answer to TLS.
const HANDSHAKE_PART: f64 = 0.8;

/// How long a server may take to answer a call: a target that is busy for a while is waited for.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Keys listed by one SCAN, about.
const SCAN_COUNT: &[u8] = b"1000";

/// Bytes read at a time from the socket of a TLS connection; TLS itself would take 4 KiB.
const TLS_READ_BYTES: usize = 64 * 1024;

/// Bytes read at a time for replies.
const READ_BYTES: usize = 16 * 1024;

/// Why a server can't be talked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("can't connect to {side} {address}: {error}")]
    Connect { side: Side, address: String, error: io::Error },
    #[error("{side} {address} did not answer within {} s", .after.as_secs())]
    Timeout { side: Side, address: String, after: Duration },
    /// A server that doesn't speak TLS waits for the rest of what it takes for a command.
    #[error("{side} {address} did not answer to TLS within {} s: does it speak TLS on this port?", .after.as_secs())]
    NoHandshake { side: Side, address: String, after: Duration },
    /// What a server does that speaks TLS and was spoken to without.
    #[error("{side} {address} ended the connection before it said anything ({error}): does it speak TLS on this port?")]
    Mute { side: Side, address: String, error: io::Error },
    #[error("the connection to {side} {address} was lost: {error}")]
    Lost { side: Side, address: String, error: io::Error },
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error("{side} {address} refuses the user or password: {words}")]
    Auth { side: Side, address: String, words: String },
    #[error("{side} {address} answers {command} with: {words}")]
    Refused { side: Side, address: String, command: String, words: String },
    #[error("{side} {address} sent what is no RESP: {error}")]
    Protocol { side: Side, address: String, error: reply::Error },
    #[error("{side} {address} is a {role}, not a primary")]
    NotPrimary { side: Side, address: String, role: String },
    #[error("the sentinel knows no primary '{primary}' ({side} {address})")]
    UnknownPrimary { side: Side, address: String, primary: String },
    /// What a sentinel was asked failed.
    #[error("asking a sentinel: {0}")]
    Sentinel(Box<Error>),
    /// None of several places says where the server is now.
    #[error("the {side} {place} has no primary that can be found: {}", each(.tried))]
    Nowhere { side: Side, place: String, tried: Vec<Error> },
}

impl Error {
    /// True when trying again later can help.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Connect { .. }
            | Error::Timeout { .. }
            | Error::NoHandshake { .. }
            | Error::Mute { .. }
            | Error::Lost { .. }
            | Error::NotPrimary { .. } => true,
            Error::Tls(_) | Error::Auth { .. } | Error::Protocol { .. } | Error::UnknownPrimary { .. } => false,
            Error::Sentinel(error) => error.is_passing(),
            Error::Nowhere { tried, .. } => tried.iter().any(Error::is_passing),
            Error::Refused { words, .. } => is_passing_refusal(words),
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Connect { .. } => Some("is the server running, and its address and port right?".into()),
            Error::NoHandshake { .. } => Some("if it doesn't, write redis:// instead of rediss://".into()),
            Error::Mute { .. } => Some("if it does, write rediss:// instead of redis://".into()),
            Error::Tls(error) => error.hint(),
            Error::Auth { side, .. } => Some(format!(
                "give the {side}'s user and password in its URL, in KEYFERRY_{}_PASSWORD or in a password file",
                side.to_string().to_uppercase()
            )),
            Error::Refused { words, .. } if words.starts_with("NOAUTH") => Some("the server wants a password".into()),
            Error::Refused { side, words, .. } => permission::hint(words, *side),
            Error::UnknownPrimary { .. } => Some("SENTINEL MASTERS lists the names that a sentinel knows".into()),
            Error::Sentinel(error) => error.hint_of_sentinel(),
            Error::Nowhere { tried, .. } => tried.iter().find_map(Error::hint),
            _ => None,
        }
    }

    fn hint_of_sentinel(&self) -> Option<String> {
        match self {
            Error::Auth { side, .. } => Some(login_of_sentinels(*side)),
            Error::Refused { side, words, .. } if words.starts_with("NOAUTH") => Some(login_of_sentinels(*side)),
            Error::Refused { words, .. } if words.starts_with("NOPERM") => {
                Some("the user of the sentinels needs: ACL SETUSER <user> +sentinel|get-master-addr-by-name".into())
            }
            Error::Refused { words, .. } if words.starts_with("ERR unknown command") => {
                Some("redis-sentinel:// wants the address of a sentinel, port 26379 as a rule".into())
            }
            Error::Connect { .. } => Some("are the sentinels running, and their addresses and ports right?".into()),
            other => other.hint(),
        }
    }
}

fn login_of_sentinels(side: Side) -> String {
    format!(
        "sentinels have a user and password of their own: --{side}-sentinel-user, KEYFERRY_{}_SENTINEL_PASSWORD or \
         --{side}-sentinel-password-file",
        side.to_string().to_uppercase()
    )
}

fn each(errors: &[Error]) -> String {
    let shown: Vec<String> = errors.iter().map(Error::to_string).collect();
    shown.join("; ")
}

/// Answers of a server that is starting, busy or changing its role.
fn is_passing_refusal(words: &str) -> bool {
    let code = words.split(' ').next().unwrap_or_default();
    matches!(
        code,
        "LOADING"
            | "BUSY"
            | "MASTERDOWN"
            | "NOMASTERLINK"
            | "TRYAGAIN"
            | "MOVED"
            | "ASK"
            | "CLUSTERDOWN"
            | "READONLY"
            | "OOM"
            | "MISCONF"
            | "NOREPLICAS"
    ) || words.contains("max number of clients")
}

/// Where one server is and how to get in.
#[derive(Clone)]
pub struct Server {
    pub side: Side,
    pub address: HostPort,
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub tls: Option<(TlsConnector, TlsOptions)>,
}

impl Server {
    /// Connects, encrypts and authenticates.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn connect(&self) -> Result<Conn, Error> {
        self.connect_in(CONNECT_TIMEOUT).await
    }

    /// The same, with another limit.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn connect_in(&self, limit: Duration) -> Result<Conn, Error> {
        match timeout(limit, self.open(limit.mul_f64(HANDSHAKE_PART))).await {
            Ok(conn) => conn,
            Err(_) => Err(Error::Timeout { side: self.side, address: self.address.to_string(), after: limit }),
        }
    }

    async fn open(&self, handshake: Duration) -> Result<Conn, Error> {
        let failed = |error| Error::Connect { side: self.side, address: self.address.to_string(), error };
        let tcp = TcpStream::connect((self.address.host.as_str(), self.address.port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let stream = match &self.tls {
            None => Stream::Plain(tcp),
            Some((connector, options)) => {
                let name = tls::server_name(self.side, options, &self.address.host)?;
                let tcp = BufReader::with_capacity(TLS_READ_BYTES, tcp);
                let stream = timeout(handshake, connector.connect(name, tcp)).await;
                let stream = stream.map_err(|_| Error::NoHandshake {
                    side: self.side,
                    address: self.address.to_string(),
                    after: handshake,
                })?;
                let stream = stream.map_err(|error| self.explain(error))?;
                Stream::Tls(Box::new(stream))
            }
        };
        let mut conn = Conn {
            side: self.side,
            address: self.address.to_string(),
            certificate: self.certificate().map(Path::to_owned),
            stream,
            input: BytesMut::new(),
            heard: false,
        };
        if let Some(password) = &self.password {
            let mut auth: Vec<&[u8]> = vec![b"AUTH"];
            auth.extend(self.user.as_ref().map(String::as_bytes));
            auth.push(password.reveal());
            if let Reply::Error(words) = conn.call(&auth).await? {
                return Err(Error::Auth { side: self.side, address: conn.address, words });
            }
        }
        Ok(conn)
    }

    fn explain(&self, error: io::Error) -> Error {
        let address = self.address.to_string();
        match tls::explain(self.side, &address, self.certificate(), &error) {
            Some(error) => Error::Tls(error),
            None => Error::Connect { side: self.side, address, error },
        }
    }

    /// The file of our certificate.
    fn certificate(&self) -> Option<&Path> {
        self.tls.as_ref().and_then(|(_, options)| options.cert.as_deref())
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.side, self.address)
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Conn {
    side: Side,
    address: String,
    /// The file of our certificate.
    certificate: Option<PathBuf>,
    stream: Stream,
    /// Bytes received and not yet read as replies.
    input: BytesMut,
    /// Whether anything ever came.
    heard: bool,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
}

impl Conn {
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends one command and waits for its reply, which may be an error.
    ///
    /// Not cancel-safe: after a cancelled call the connection is out of step.
    /// # Errors
    /// When the connection fails, or in [`CALL_TIMEOUT`].
    pub async fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply, Error> {
        let mut out = Vec::new();
        encode::command(&mut out, args);
        self.send(&out).await?;
        self.reply().await
    }

    /// The same, with an error reply as an error.
    ///
    /// # Errors
    /// `Refused` when the server answers an error.
    pub async fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply, Error> {
        match self.call(args).await? {
            Reply::Error(words) => Err(self.refused(args.first().map_or(&b""[..], AsRef::as_ref), words)),
            reply => Ok(reply),
        }
    }

    /// One SCAN of the selected database: moves `cursor` on (`0` again behind the last) and returns the keys.
    ///
    /// # Errors
    /// When the connection fails or the server refuses.
    pub async fn scan(&mut self, cursor: &mut Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.scan_matching(cursor, b"*").await
    }

    /// The same for the keys that a glob matches.
    ///
    /// # Errors
    /// When the connection fails or the server refuses.
    pub async fn scan_matching(&mut self, cursor: &mut Vec<u8>, glob: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let reply = self.ask(&[&b"SCAN"[..], cursor, b"MATCH", glob, b"COUNT", SCAN_COUNT]).await?;
        let parts = reply.array().unwrap_or_default();
        *cursor = parts.first().and_then(Reply::bytes).unwrap_or(b"0").to_vec();
        let keys = parts.get(1).and_then(Reply::array).unwrap_or_default();
        Ok(keys.iter().filter_map(Reply::bytes).map(<[u8]>::to_vec).collect())
    }

    /// The error that `command` was answered with `words`.
    pub fn refused(&self, command: &[u8], words: String) -> Error {
        Error::Refused {
            side: self.side,
            address: self.address.clone(),
            command: String::from_utf8_lossy(command).into_owned(),
            words,
        }
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let sent = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| self.lost(error))
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// When the connection fails or what comes is no reply.
    pub async fn reply(&mut self) -> Result<Reply, Error> {
        loop {
            match Reply::parse(&self.input) {
                Ok(Some((reply, len))) => {
                    self.input.advance(len);
                    return Ok(reply);
                }
                Ok(None) => {}
                Err(_) if matches!(self.stream, Stream::Plain(_)) && tls::is_tls_record(&self.input) => {
                    return Err(tls::Error::WantsTls { side: self.side, address: self.address.clone() }.into());
                }
                Err(error) => {
                    return Err(Error::Protocol { side: self.side, address: self.address.clone(), error });
                }
            }
            // Not into an array of this future: it would be moved about with each reply.
            self.input.reserve(READ_BYTES);
            let read = timeout(CALL_TIMEOUT, self.stream.read_buf(&mut self.input)).await;
            match read {
                Err(_) => {
                    return Err(Error::Timeout { side: self.side, address: self.address.clone(), after: CALL_TIMEOUT });
                }
                Ok(Err(error)) => return Err(self.lost(error)),
                Ok(Ok(0)) => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(Ok(_)) => self.heard = true,
            }
        }
    }

    /// Reads raw bytes into `buf`, first those that came behind the last reply; 0 at the connection's end.
    ///
    /// Cancel-safe.
    /// # Errors
    /// When the connection fails.
    pub async fn read(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        if !self.input.is_empty() {
            let n = self.input.len().min(buf.len());
            for (to, from) in buf.iter_mut().zip(self.input.split_to(n)) {
                *to = from;
            }
            return Ok(n);
        }
        self.stream.read(buf).await.map_err(|error| self.lost(error))
    }

    /// The error of a connection that broke with `error`.
    pub fn lost(&self, error: io::Error) -> Error {
        let (side, address) = (self.side, self.address.clone());
        match tls::explain(side, &address, self.certificate.as_deref(), &error) {
            Some(error) => Error::Tls(error),
            None if !self.heard && matches!(self.stream, Stream::Plain(_)) => Error::Mute { side, address, error },
            None => Error::Lost { side, address, error },
        }
    }

    /// Reads what is there without waiting: `Ready(Ok(0))` at the connection's end.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(buf.filled().len())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Writes as much as goes without waiting.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    /// Pushes out what TLS holds back.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => poll_read_records(Pin::new(s), cx, buf),
        }
    }
}

/// Reads all records that are there, rather than one of at most 16 KiB: whoever reads does the same work for few bytes
/// as for many.
fn poll_read_records(
    mut stream: Pin<&mut Box<TlsStream<BufReader<TcpStream>>>>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let before = buf.filled().len();
    loop {
        let had = buf.filled().len();
        match stream.as_mut().poll_read(cx, buf) {
            Poll::Ready(Ok(())) if buf.filled().len() > had && buf.remaining() > 0 => {}
            // An end or a failure behind bytes is met again with the next read.
            Poll::Ready(Err(_)) | Poll::Pending if had > before => return Poll::Ready(Ok(())),
            other => return other,
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_write(cx, bytes),
            Stream::Tls(s) => Pin::new(s).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
