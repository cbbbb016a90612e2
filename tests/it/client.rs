//! A blocking client for raw commands: binary arguments, replies as they are, pipelines whose errors stay in their place.
//!
//! Built on the `redis` crate, and on nothing of keyferry, so that what it reads back is an independent word.

use redis::{ConnectionLike, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// One command, name first.
pub type Cmd = Vec<Vec<u8>>;

/// How many commands of a pipeline are on their way at once.
const WINDOW: usize = 1000;

/// What may stand in [`cmd!`](crate::cmd).
pub trait Arg {
    fn to_arg(&self) -> Vec<u8>;
}

impl Arg for [u8] {
    fn to_arg(&self) -> Vec<u8> {
        self.to_vec()
    }
}
impl<const N: usize> Arg for [u8; N] {
    fn to_arg(&self) -> Vec<u8> {
        self.to_vec()
    }
}
impl Arg for Vec<u8> {
    fn to_arg(&self) -> Vec<u8> {
        self.clone()
    }
}
impl<T: Arg + ?Sized> Arg for &T {
    fn to_arg(&self) -> Vec<u8> {
        (**self).to_arg()
    }
}
macro_rules! arg_by_display {
    ($($t:ty),*) => {$(impl Arg for $t {
        fn to_arg(&self) -> Vec<u8> {
            self.to_string().into_bytes()
        }
    })*};
}
arg_by_display!(str, String, i32, i64, u16, u32, u64, usize, i128, f64);

/// A command from anything that has a text or bytes: `cmd!["SET", key, 5]`.
#[macro_export]
macro_rules! cmd {
    ($($arg:expr),* $(,)?) => { Vec::from([$($crate::client::Arg::to_arg(&$arg)),*]) };
}

/// A reply, comparable and ordered.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    Error(String),
    List(Vec<Reply>),
}

impl Reply {
    pub fn int(&self) -> i64 {
        match self {
            Reply::Int(n) => *n,
            Reply::Bytes(b) => String::from_utf8_lossy(b).parse().unwrap_or(-1),
            _ => panic!("not a number: {self:?}"),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Reply::Bytes(b) => b,
            _ => panic!("not a string: {self:?}"),
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub fn list(&self) -> &[Reply] {
        match self {
            Reply::List(items) => items,
            _ => panic!("not a list: {self:?}"),
        }
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// The value behind `name` in a flat list of names and values.
    pub fn field(&self, name: &str) -> Option<&Reply> {
        let mut pairs = self.list().chunks_exact(2);
        pairs.find_map(|p| match p {
            [Reply::Bytes(n), value] if n == name.as_bytes() => Some(value),
            _ => None,
        })
    }

    fn from_value(value: Value) -> Reply {
        match value {
            Value::Nil => Reply::Nil,
            Value::Int(n) => Reply::Int(n),
            Value::BulkString(b) => Reply::Bytes(b),
            Value::SimpleString(s) => Reply::Bytes(s.into_bytes()),
            Value::Okay => Reply::Bytes(b"OK".to_vec()),
            Value::Array(items) => Reply::List(items.into_iter().map(Reply::from_value).collect()),
            Value::ServerError(e) => Reply::Error(format!("{} {}", e.code(), e.details().unwrap_or_default())),
            other => panic!("a reply that RESP2 doesn't have: {other:?}"),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => write!(f, "nil"),
            Reply::Int(n) => write!(f, "{n}"),
            Reply::Bytes(b) => write!(f, "'{}'", shown(b)),
            Reply::Error(e) => write!(f, "error {e}"),
            Reply::List(items) => f.debug_list().entries(items).finish(),
        }
    }
}

/// Bytes for a message: escaped, and cut to a length that fits on a line.
pub fn shown(bytes: &[u8]) -> String {
    let cut = bytes.get(..60).unwrap_or(bytes);
    let dots = if cut.len() < bytes.len() { "…" } else { "" };
    format!("{}{dots}", cut.escape_ascii())
}

pub struct Client {
    con: redis::Connection,
}

impl Client {
    /// # Errors
    /// The client library's words when the server doesn't answer or refuses the password.
    pub fn connect(port: u16, user: Option<&str>, password: Option<&str>) -> Result<Client, String> {
        let url = format!("redis://127.0.0.1:{port}");
        let client = redis::Client::open(url).map_err(|e| e.to_string())?;
        let con = client.get_connection_with_timeout(Duration::from_secs(5)).map_err(|e| e.to_string())?;
        con.set_read_timeout(Some(Duration::from_secs(60))).map_err(|e| e.to_string())?;
        let mut client = Client { con };
        match (user, password) {
            (Some(user), Some(word)) => client.ask(&cmd!["AUTH", user, word])?,
            (None, Some(word)) => client.ask(&cmd!["AUTH", word])?,
            _ => client.ask(&cmd!["PING"])?,
        };
        Ok(client)
    }

    /// # Errors
    /// The server's error, or the connection's.
    pub fn ask(&mut self, command: &[Vec<u8>]) -> Result<Reply, String> {
        let replies = self.send(std::slice::from_ref(&command.to_vec()))?;
        match replies.into_iter().next() {
            Some(Reply::Error(words)) => Err(words),
            Some(reply) => Ok(reply),
            None => Err("no reply".into()),
        }
    }

    /// The reply to one command; an error is a failure of the test.
    pub fn call(&mut self, command: &[Vec<u8>]) -> Reply {
        self.ask(command).unwrap_or_else(|e| panic!("{}: {e}", command_text(command)))
    }

    /// All replies of a pipeline, errors among them.
    pub fn pipe(&mut self, commands: &[Cmd]) -> Vec<Reply> {
        self.try_pipe(commands).unwrap_or_else(|e| panic!("pipeline of {}: {e}", commands.len()))
    }

    /// # Errors
    /// The connection's words when it breaks.
    pub fn try_pipe(&mut self, commands: &[Cmd]) -> Result<Vec<Reply>, String> {
        let mut replies = Vec::with_capacity(commands.len());
        for part in commands.chunks(WINDOW) {
            replies.extend(self.send(part)?);
        }
        Ok(replies)
    }

    /// A pipeline in which no command may fail.
    pub fn load(&mut self, commands: &[Cmd]) {
        for (command, reply) in commands.iter().zip(self.pipe(commands)) {
            if let Reply::Error(words) = reply {
                panic!("{}: {words}", command_text(command));
            }
        }
    }

    pub fn select(&mut self, db: u32) {
        self.call(&cmd!["SELECT", db]);
    }

    pub fn get(&mut self, key: &str) -> Reply {
        self.call(&cmd!["GET", key])
    }

    pub fn dbsize(&mut self) -> i64 {
        self.call(&cmd!["DBSIZE"]).int()
    }

    /// The fields of one section of INFO.
    pub fn info(&mut self, section: &str) -> BTreeMap<String, String> {
        let Ok(reply) = self.ask(&cmd!["INFO", section]) else {
            return BTreeMap::new();
        };
        reply
            .text()
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_string(), value.trim_end().to_string()))
            .collect()
    }

    /// Whether the server knows a command.
    pub fn knows(&mut self, command: &str) -> bool {
        let reply = self.call(&cmd!["COMMAND", "INFO", command]);
        matches!(reply.list().first(), Some(Reply::List(_)))
    }

    fn send(&mut self, commands: &[Cmd]) -> Result<Vec<Reply>, String> {
        let mut packed = Vec::new();
        for command in commands {
            encode(command, &mut packed);
        }
        self.con
            .req_packed_commands(&packed, 0, commands.len())
            .map(|values| values.into_iter().map(Reply::from_value).collect())
            .map_err(|e| e.to_string())
    }
}

/// A connection that listens to one channel.
pub struct Subscriber {
    con: redis::Connection,
}

impl Subscriber {
    pub fn new(client: Client, channel: &str) -> Subscriber {
        let mut subscriber = Subscriber { con: client.con };
        let mut packed = Vec::new();
        encode(&cmd!["SUBSCRIBE", channel], &mut packed);
        subscriber.con.send_packed_command(&packed).expect("SUBSCRIBE is sent");
        subscriber.next();
        subscriber
    }

    /// The next message's text, waited for as long as the client's read timeout.
    pub fn next(&mut self) -> String {
        let reply = self.con.recv_response().expect("a message within the timeout");
        let reply = match reply {
            Value::Push { data, .. } => Value::Array(data),
            other => other,
        };
        match Reply::from_value(reply).list().last() {
            Some(Reply::Bytes(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        }
    }
}

/// Appends one command in RESP.
pub fn encode(command: &[Vec<u8>], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
    for arg in command {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

fn command_text(command: &[Vec<u8>]) -> String {
    let words: Vec<String> = command.iter().take(6).map(|a| shown(a)).collect();
    words.join(" ")
}
