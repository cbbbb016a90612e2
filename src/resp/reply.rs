//! Replies of servers: a scanner that walks over them for the lanes, and a tree for control connections.

use super::limits::{LINE_BYTES_MAX, REPLY_BYTES_MAX, REPLY_DEPTH_MAX};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a reply begins with byte {0:#04x}, which is no type")]
    UnknownType(u8),
    #[error("a reply's length is not a number")]
    BadLength,
    #[error("a line of a reply has no end within {LINE_BYTES_MAX} bytes")]
    EndlessLine,
    #[error("a reply is nested deeper than {REPLY_DEPTH_MAX}")]
    TooDeep,
    #[error("a reply is longer than {REPLY_BYTES_MAX} bytes")]
    TooLong,
    #[error("a bulk string doesn't end where its length says")]
    BadBulkEnd,
}

/// One line of a reply: all but a bulk string's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    Status(&'a [u8]),
    Error(&'a [u8]),
    Integer(i64),
    /// A bulk string of so many bytes and CR LF follow.
    Bulk(usize),
    /// So many replies follow.
    Array(usize),
    Null,
}

/// Reads the line at the front of `buf`; returns it and its length with CR LF, or `None` if it isn't whole.
/// # Errors
/// When the bytes can't be a RESP2 reply.
pub fn line(buf: &[u8]) -> Result<Option<(Line<'_>, usize)>, Error> {
    let Some((&kind, rest)) = buf.split_first() else { return Ok(None) };
    let Some(end) = memchr::memchr(b'\n', rest) else {
        return if rest.len() > LINE_BYTES_MAX { Err(Error::EndlessLine) } else { Ok(None) };
    };
    let text = rest.get(..end).unwrap_or_default();
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let line = match kind {
        b'+' => Line::Status(text),
        b'-' => Line::Error(text),
        b':' => Line::Integer(number(text)?),
        b'$' => length(text)?.map_or(Line::Null, Line::Bulk),
        b'*' => length(text)?.map_or(Line::Null, Line::Array),
        other => return Err(Error::UnknownType(other)),
    };
    Ok(Some((line, end + 2)))
}

fn number(text: &[u8]) -> Result<i64, Error> {
    std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or(Error::BadLength)
}

/// A length, `None` for -1.
fn length(text: &[u8]) -> Result<Option<usize>, Error> {
    match number(text)? {
        -1 => Ok(None),
        n => usize::try_from(n).map(Some).map_err(|_| Error::BadLength),
    }
}

/// What the scanner tells about the replies on a lane: enough to match them, without keeping their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanned<'a> {
    /// A whole reply, or a whole element of the array last opened, that is no error.
    Value,
    /// The same, for a status or an integer where the text matters.
    Status(&'a [u8]),
    Integer(i64),
    Null,
    Error(&'a [u8]),
    /// An array of so many elements opens; each comes as one of the others. Deeper ones come as one `Value`.
    Open(usize),
}

/// Walks over replies, skipping the bytes of bulk strings and of nested arrays without holding them.
#[derive(Debug, Default)]
pub struct Scanner {
    /// Bytes of a bulk string, with its CR LF, still to be skipped.
    skip: usize,
    /// Elements still to come in nested arrays, outermost first; a `Value` is due when it empties.
    nested: Vec<usize>,
    /// Elements still to come in the array that was opened.
    open: usize,
}

impl Scanner {
    pub fn new() -> Self {
        Scanner::default()
    }

    /// Reads on from the front of `buf`; returns how many bytes are done with, and what they were.
    ///
    /// `(n, None)` means that more bytes are needed after these `n`.
    /// # Errors
    /// When the bytes can't be a RESP2 reply, or nest too deep.
    pub fn scan<'a>(&mut self, buf: &'a [u8]) -> Result<(usize, Option<Scanned<'a>>), Error> {
        let mut at = 0;
        loop {
            if self.skip > 0 {
                let here = self.skip.min(buf.len() - at);
                self.skip -= here;
                at += here;
                if self.skip > 0 {
                    return Ok((at, None));
                }
                if self.value_done() {
                    return Ok((at, Some(Scanned::Value)));
                }
                continue;
            }
            let Some((line, len)) = line(buf.get(at..).unwrap_or_default())? else { return Ok((at, None)) };
            at += len;
            let scanned = match line {
                Line::Bulk(len) => {
                    self.skip = len.checked_add(2).ok_or(Error::TooLong)?;
                    continue;
                }
                Line::Array(count) if self.open == 0 && self.nested.is_empty() => {
                    self.open = count;
                    return Ok((at, Some(Scanned::Open(count))));
                }
                Line::Array(count) if count > 0 => {
                    if self.nested.len() >= REPLY_DEPTH_MAX {
                        return Err(Error::TooDeep);
                    }
                    self.nested.push(count);
                    continue;
                }
                Line::Array(_) => Scanned::Value,
                Line::Status(text) => Scanned::Status(text),
                Line::Integer(n) => Scanned::Integer(n),
                Line::Error(text) => Scanned::Error(text),
                Line::Null => Scanned::Null,
            };
            let inside = !self.nested.is_empty();
            if self.value_done() {
                return Ok((at, Some(if inside { Scanned::Value } else { scanned })));
            }
        }
    }

    /// Counts one whole value; true when it, or the nested array it ends, is one to tell of.
    fn value_done(&mut self) -> bool {
        while let Some(left) = self.nested.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.nested.pop();
        }
        self.open = self.open.saturating_sub(1);
        true
    }
}

/// A whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Status(Vec<u8>),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    Null,
}

impl Reply {
    /// Reads the reply at the front of `buf`; returns it and its length, or `None` if it isn't whole.
    /// # Errors
    /// When it is no RESP2 reply, too deep or too long.
    pub fn parse(buf: &[u8]) -> Result<Option<(Reply, usize)>, Error> {
        let mut at = 0;
        let mut open: Vec<(Vec<Reply>, usize)> = Vec::new();
        loop {
            let Some((line, len)) = line(buf.get(at..).unwrap_or_default())? else { return Ok(None) };
            at += len;
            let mut reply = match line {
                Line::Status(text) => Reply::Status(text.to_vec()),
                Line::Error(text) => Reply::Error(String::from_utf8_lossy(text).into_owned()),
                Line::Integer(n) => Reply::Integer(n),
                Line::Null => Reply::Null,
                Line::Bulk(len) => {
                    let end = at.checked_add(len).filter(|e| *e < REPLY_BYTES_MAX).ok_or(Error::TooLong)?;
                    let Some(bytes) = buf.get(at..end + 2) else { return Ok(None) };
                    let bytes = bytes.strip_suffix(b"\r\n").ok_or(Error::BadBulkEnd)?;
                    at = end + 2;
                    Reply::Bulk(bytes.to_vec())
                }
                Line::Array(0) => Reply::Array(Vec::new()),
                Line::Array(count) => {
                    if open.len() >= REPLY_DEPTH_MAX {
                        return Err(Error::TooDeep);
                    }
                    open.push((Vec::new(), count));
                    continue;
                }
            };
            loop {
                let Some((items, count)) = open.last_mut() else { return Ok(Some((reply, at))) };
                items.push(reply);
                if items.len() < *count {
                    break;
                }
                reply = Reply::Array(std::mem::take(items));
                open.pop();
            }
        }
    }

    /// The bytes of a bulk string or status.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Bulk(bytes) | Reply::Status(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            Reply::Integer(n) => Some(*n),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) => Some(items),
            _ => None,
        }
    }

    /// What TIME answers (seconds, and microseconds of the next), in Unix milliseconds.
    pub fn unix_ms(&self) -> Option<i64> {
        let [seconds, micros] = self.array()? else { return None };
        let number = |reply: &Reply| std::str::from_utf8(reply.bytes()?).ok()?.parse::<i64>().ok();
        number(seconds)?.checked_mul(1000)?.checked_add(number(micros)? / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(reply: &Reply, out: &mut Vec<u8>) {
        match reply {
            Reply::Status(t) => out.extend([b"+", &t[..], b"\r\n"].concat()),
            Reply::Error(t) => out.extend(format!("-{t}\r\n").into_bytes()),
            Reply::Integer(n) => out.extend(format!(":{n}\r\n").into_bytes()),
            Reply::Bulk(b) => out.extend([format!("${}\r\n", b.len()).as_bytes(), b, b"\r\n"].concat()),
            Reply::Null => out.extend(b"$-1\r\n"),
            Reply::Array(items) => {
                out.extend(format!("*{}\r\n", items.len()).into_bytes());
                items.iter().for_each(|i| encode(i, out));
            }
        }
    }

    fn any_reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            "[a-zA-Z ]{0,8}".prop_map(|s| Reply::Status(s.into_bytes())),
            "[a-zA-Z ]{0,8}".prop_map(Reply::Error),
            any::<i64>().prop_map(Reply::Integer),
            prop::collection::vec(any::<u8>(), 0..12).prop_map(Reply::Bulk),
            Just(Reply::Null),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Reply::Array))
    }

    /// What the scanner must say of `reply`.
    fn expected(reply: &Reply, out: &mut Vec<String>) {
        match reply {
            Reply::Array(items) => {
                out.push(format!("open {}", items.len()));
                out.extend(items.iter().map(flat));
            }
            leaf => out.push(flat(leaf)),
        }
    }

    fn flat(reply: &Reply) -> String {
        match reply {
            Reply::Status(t) => format!("status {}", String::from_utf8_lossy(t)),
            Reply::Error(t) => format!("error {t}"),
            Reply::Integer(n) => format!("integer {n}"),
            Reply::Null => "null".into(),
            _ => "value".into(),
        }
    }

    fn told(scanned: Scanned<'_>) -> String {
        match scanned {
            Scanned::Value => "value".into(),
            Scanned::Status(t) => format!("status {}", String::from_utf8_lossy(t)),
            Scanned::Error(t) => format!("error {}", String::from_utf8_lossy(t)),
            Scanned::Integer(n) => format!("integer {n}"),
            Scanned::Null => "null".into(),
            Scanned::Open(n) => format!("open {n}"),
        }
    }

    proptest! {
        #[test]
        fn scan_and_parse_at_any_split_tell_the_same(
            replies in prop::collection::vec(any_reply(), 1..6), size in 1usize..50,
        ) {
            let (mut bytes, mut want) = (Vec::new(), Vec::new());
            for reply in &replies {
                encode(reply, &mut bytes);
                expected(reply, &mut want);
            }
            let (mut scanner, mut buf, mut got) = (Scanner::new(), Vec::new(), Vec::new());
            for piece in bytes.chunks(size) {
                buf.extend_from_slice(piece);
                loop {
                    let (used, scanned) = scanner.scan(&buf).unwrap();
                    let scanned = scanned.map(told);
                    buf.drain(..used);
                    match scanned { Some(s) => got.push(s), None => break }
                }
            }
            prop_assert_eq!(got, want);
            let (mut at, mut trees) = (0, Vec::new());
            while let Some((reply, len)) = Reply::parse(&bytes[at..]).unwrap() {
                at += len;
                trees.push(reply);
            }
            prop_assert_eq!(trees, replies);
        }

        #[test]
        fn any_bytes_end_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reply::parse(&bytes);
            let mut scanner = Scanner::new();
            let mut at = 0;
            while let Ok((used, Some(_))) = scanner.scan(&bytes[at..]) { at += used; }
        }
    }

    #[test]
    fn nesting_past_the_limit_is_an_error_and_at_it_is_not() {
        let deep = |n: usize| [b"*1\r\n".repeat(n), b":1\r\n".to_vec()].concat();
        assert!(matches!(Reply::parse(&deep(REPLY_DEPTH_MAX)), Ok(Some(_))));
        assert_eq!(Reply::parse(&deep(REPLY_DEPTH_MAX + 1)), Err(Error::TooDeep));
        assert_eq!(Reply::parse(&deep(100_000)), Err(Error::TooDeep));
        assert!(Scanner::new().scan(&[b"*1\r\n".to_vec(), deep(100_000)].concat()).is_ok());
    }
}
