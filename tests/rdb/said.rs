//! What a server says of its own values by plain commands, as lines that stay in `tests/data/rdb`.
//!
//! ```text
//! 0 'key' hash listpack -1 'field' 'value' -1
//! │   │    │     │       │  └ the value: elements in order, or sorted where there is none
//! │   │    │     │       └ when the key expires, Unix time in ms, or -1
//! │   │    TYPE  OBJECT ENCODING
//! └ database
//! ```

use redis::Value as Reply;

use crate::servers::Server;

/// The databases that hold keys.
const DATABASES: [u32; 2] = [0, 3];

/// What is longer is cut, with a checksum of the whole.
const SHOWN_MAX: usize = 300;

/// A value in words that a server and a decoder have in common.
pub enum Told {
    String(Vec<u8>),
    List(Vec<Vec<u8>>),
    Set(Vec<Vec<u8>>),
    Zset(Vec<(Vec<u8>, f64)>),
    /// Field, value, and when it expires, or -1.
    Hash(Vec<(Vec<u8>, Vec<u8>, i64)>),
    Stream(StreamTold),
    Array(Vec<(u64, Vec<u8>)>),
    /// A library of functions.
    Code(Vec<u8>),
    /// A module's, which has no plain command.
    Untold,
}

#[derive(Default)]
pub struct StreamTold {
    pub entries: Vec<(String, Vec<Vec<u8>>)>,
    pub last_id: String,
    /// Greatest deleted id and number of entries added, since 7.0.
    pub counters: Option<(String, u64)>,
    pub groups: Vec<GroupTold>,
}

pub struct GroupTold {
    pub name: Vec<u8>,
    pub last_id: String,
    /// Since 7.0, and not always known.
    pub entries_read: Option<u64>,
    pub consumers: Vec<Vec<u8>>,
    /// Id, consumer (none where it was given back), deliveries.
    pub pending: Vec<(String, Vec<u8>, u64)>,
}

/// A key's line.
pub fn line(db: u32, key: &[u8], kind: &str, encoding: &str, expires_at_ms: i64, value: Told) -> String {
    format!("{db} {} {kind} {encoding} {expires_at_ms} {}", quoted(key), value.words())
}

fn quoted(bytes: &[u8]) -> String {
    format!("'{}'", bytes.escape_ascii())
}

fn all_quoted<'a>(items: impl IntoIterator<Item = &'a Vec<u8>>) -> String {
    items.into_iter().map(|item| quoted(item)).collect::<Vec<_>>().join(" ")
}

impl Told {
    fn words(self) -> String {
        let words = match self {
            Told::String(text) | Told::Code(text) => quoted(&text),
            Told::List(items) => all_quoted(&items),
            Told::Set(mut members) => {
                members.sort();
                all_quoted(&members)
            }
            Told::Zset(mut members) => {
                members.sort_by(|a, b| a.0.cmp(&b.0));
                // No sign of zero: servers since 7.0 drop it when they write it.
                let words = members.iter().map(|(member, score)| format!("{} {:?}", quoted(member), score + 0.0));
                words.collect::<Vec<_>>().join(" ")
            }
            Told::Hash(mut fields) => {
                fields.sort();
                let words = fields.iter().map(|(field, value, at)| format!("{} {} {at}", quoted(field), quoted(value)));
                words.collect::<Vec<_>>().join(" ")
            }
            Told::Stream(stream) => stream.words(),
            Told::Array(items) => {
                let words = items.iter().map(|(index, text)| format!("{index} {}", quoted(text)));
                words.collect::<Vec<_>>().join(" ")
            }
            Told::Untold => "untold".into(),
        };
        if words.len() <= SHOWN_MAX {
            return words;
        }
        let (shown, crc) = (&words[..SHOWN_MAX], keyferry::rdb::crc64(0, words.as_bytes()));
        format!("{shown}… {} characters {crc:016x}", words.len())
    }
}

impl StreamTold {
    fn words(mut self) -> String {
        let entries = self.entries.iter().map(|(id, fields)| format!("{id} {}", all_quoted(fields)));
        let mut words = format!("[{}] last {}", entries.collect::<Vec<_>>().join("; "), self.last_id);
        if let Some((deleted, added)) = &self.counters {
            words += &format!(" deleted {deleted} added {added}");
        }
        self.groups.sort_by(|a, b| a.name.cmp(&b.name));
        for group in &mut self.groups {
            group.consumers.sort();
            group.pending.sort();
            let read = group.entries_read.map(|n| format!(" read {n}")).unwrap_or_default();
            let pending = group.pending.iter().map(|(id, owner, times)| format!("{id} {} {times}", quoted(owner)));
            words += &format!(
                "; group {} last {}{read} consumers {} pending {}",
                quoted(&group.name),
                group.last_id,
                all_quoted(&group.consumers),
                pending.collect::<Vec<_>>().join(" "),
            );
        }
        words
    }
}

/// Asks a server for all that it holds: functions first, then keys in order.
pub fn ask(server: &mut Server) -> Vec<String> {
    let mut lines = Vec::new();
    if let Ok(libraries) = server.line("FUNCTION LIST WITHCODE") {
        lines.extend(list(&libraries).iter().map(|library| {
            let code = Told::Code(bytes(field(library, "library_code").expect("a library's code")));
            line(0, &bytes(field(library, "library_name").expect("a name")), "function", "-", -1, code)
        }));
    }
    for db in DATABASES {
        server.line(&format!("SELECT {db}")).expect("a database");
        for key in server.keys() {
            let kind = text(&server.call(&[b"TYPE", &key]).expect("a type"));
            let encoding = server.call(&[b"OBJECT", b"ENCODING", &key]).map(|word| text(&word)).expect("an encoding");
            let at = expires_at_ms(server, &key);
            let value = value(server, &key, &kind);
            lines.push(line(db, &key, &kind, &encoding, at, value));
        }
    }
    server.line("SELECT 0").expect("the first database");
    lines
}

/// Asked first: the words that refuse an unknown command repeat its arguments, which needn't be text.
fn knows(server: &mut Server, command: &str) -> bool {
    let info = server.line(&format!("COMMAND INFO {command}")).expect("an answer");
    list(&info).iter().any(|one| *one != Reply::Nil)
}

/// Before 7.0 servers tell only how long is left: exact between two looks at the clock that show the same millisecond.
fn expires_at_ms(server: &mut Server, key: &[u8]) -> i64 {
    if knows(server, "PEXPIRETIME") {
        return int(&server.call(&[b"PEXPIRETIME", key]).expect("a time"));
    }
    loop {
        let before = clock_ms(server);
        let left_ms = int(&server.call(&[b"PTTL", key]).expect("a time"));
        if left_ms < 0 {
            return -1;
        }
        if before == clock_ms(server) {
            return before + left_ms;
        }
    }
}

fn clock_ms(server: &mut Server) -> i64 {
    let time = server.line("TIME").expect("a time");
    let number = |at: usize| text(&list(&time)[at]).parse::<i64>().expect("a number");
    number(0) * 1000 + number(1) / 1000
}

fn value(server: &mut Server, key: &[u8], kind: &str) -> Told {
    let mut ask =
        |args: &[&[u8]]| server.call(args).unwrap_or_else(|error| panic!("{}: {error}", args[0].escape_ascii()));
    match kind {
        "string" => Told::String(bytes(&ask(&[b"GET", key]))),
        "list" => Told::List(all_bytes(&ask(&[b"LRANGE", key, b"0", b"-1"]))),
        "set" => Told::Set(all_bytes(&ask(&[b"SMEMBERS", key]))),
        "zset" => {
            let flat = all_bytes(&ask(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]));
            let score = |word: &[u8]| String::from_utf8_lossy(word).parse().expect("a score");
            Told::Zset(flat.chunks_exact(2).map(|pair| (pair[0].clone(), score(&pair[1]))).collect())
        }
        "hash" => {
            let flat = all_bytes(&ask(&[b"HGETALL", key]));
            let told = knows(server, "HPEXPIRETIME");
            let mut expiry = |field: &[u8]| match told {
                true => int(&list(&server.call(&[b"HPEXPIRETIME", key, b"FIELDS", b"1", field]).expect("times"))[0]),
                false => -1,
            };
            let fields = flat.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone(), expiry(&pair[0])));
            Told::Hash(fields.collect())
        }
        "stream" => Told::Stream(stream(server, key)),
        "array" => {
            let flat = all_bytes(&ask(&[b"ARSCAN", key, b"0", b"18446744073709551614"]));
            let index = |word: &[u8]| String::from_utf8_lossy(word).parse().expect("an index");
            Told::Array(flat.chunks_exact(2).map(|pair| (index(&pair[0]), pair[1].clone())).collect())
        }
        _ => Told::Untold,
    }
}

fn stream(server: &mut Server, key: &[u8]) -> StreamTold {
    let mut ask =
        |args: &[&[u8]]| server.call(args).unwrap_or_else(|error| panic!("{}: {error}", args[0].escape_ascii()));
    let info = ask(&[b"XINFO", b"STREAM", key]);
    let counters = field(&info, "max-deleted-entry-id")
        .map(|deleted| (text(deleted), int(field(&info, "entries-added").expect("a count")) as u64));
    let entries = ask(&[b"XRANGE", key, b"-", b"+"]);
    let entry = |entry: &Reply| (text(&list(entry)[0]), all_bytes(&list(entry)[1]));
    let mut told = StreamTold {
        entries: list(&entries).iter().map(entry).collect(),
        last_id: text(field(&info, "last-generated-id").expect("an id")),
        counters,
        groups: Vec::new(),
    };
    for group in list(&ask(&[b"XINFO", b"GROUPS", key])) {
        let name = bytes(field(group, "name").expect("a name"));
        let consumers = ask(&[b"XINFO", b"CONSUMERS", key, &name]);
        let pending = ask(&[b"XPENDING", key, &name, b"-", b"+", b"100000"]);
        let one = |one: &Reply| {
            let parts = list(one);
            (text(&parts[0]), bytes(&parts[1]), int(&parts[3]) as u64)
        };
        told.groups.push(GroupTold {
            last_id: text(field(group, "last-delivered-id").expect("an id")),
            entries_read: field(group, "entries-read").filter(|n| **n != Reply::Nil).map(|n| int(n) as u64),
            consumers: list(&consumers).iter().map(|c| bytes(field(c, "name").expect("a name"))).collect(),
            pending: list(&pending).iter().map(one).collect(),
            name,
        });
    }
    told
}

fn list(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) => items,
        other => panic!("no list: {other:?}"),
    }
}

/// What stands behind a name in a flat list of names and values.
fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    list(reply).chunks_exact(2).find(|pair| text(&pair[0]) == name).map(|pair| &pair[1])
}

fn bytes(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::BulkString(bytes) => bytes.clone(),
        Reply::SimpleString(word) => word.clone().into_bytes(),
        Reply::Int(number) => number.to_string().into_bytes(),
        other => panic!("no string: {other:?}"),
    }
}

/// The elements of a list, those of lists within it in their place.
fn all_bytes(reply: &Reply) -> Vec<Vec<u8>> {
    let nested = |item: &Reply| match item {
        Reply::Array(_) => all_bytes(item),
        other => vec![bytes(other)],
    };
    list(reply).iter().flat_map(nested).collect()
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&bytes(reply)).into_owned()
}

fn int(reply: &Reply) -> i64 {
    match reply {
        Reply::Int(number) => *number,
        other => panic!("no number: {other:?}"),
    }
}
