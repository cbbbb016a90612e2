//! A resumable parser for the commands of a replication stream.
//!
//! It never starts a command again from zero: what it has read of one it remembers, so the time is linear in the
//! command's size however the bytes arrive.

use super::limits::{COMMAND_ARGS_MAX, COMMAND_BYTES_MAX, LINE_BYTES_MAX};
use crate::args::{Args, Span};

/// Why a stream can't be read any further. Positions are bytes from the command's first byte.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("expected '{expected}' at byte {at} of a command, found byte {found:#04x}")]
    Unexpected { expected: char, found: u8, at: usize },
    #[error("a length at byte {at} of a command is not a number")]
    BadLength { at: usize },
    #[error("a command claims {count} arguments, more than {COMMAND_ARGS_MAX}")]
    TooManyArgs { count: u64 },
    #[error("a command grew over {COMMAND_BYTES_MAX} bytes")]
    TooLong,
    #[error("a line at byte {at} of a command has no end within {LINE_BYTES_MAX} bytes")]
    EndlessLine { at: usize },
}

/// What stands at the front of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// A command of `len` bytes, whose arguments [`Parser::args`] gives.
    Command { len: usize },
    /// A bare newline between commands: one byte that doesn't count in the replication offset.
    Newline,
}

/// An argument that has begun and isn't whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Which it is.
    pub index: usize,
    /// Where its `$` stands, counted from the command's first byte.
    pub at: usize,
    /// Where its data begins.
    pub start: usize,
    pub len: usize,
}

/// Reads one command after another from the front of a growing buffer.
///
/// The caller keeps the bytes of an unfinished command at the front of its buffer and appends to them.
#[derive(Debug, Default)]
pub struct Parser {
    spans: Vec<Span>,
    /// How far the unfinished command was read.
    at: usize,
    /// Arguments the unfinished command still lacks; `None` before its header was read.
    missing: Option<usize>,
}

impl Parser {
    pub fn new() -> Self {
        Parser::default()
    }

    /// Reads the command at the front of `buf`, going on where the last call stopped.
    ///
    /// Returns `Ok(None)` if it isn't whole yet. After `Some`, the next call expects the buffer without it.
    /// # Errors
    /// When the bytes can't be a command, whatever follows.
    pub fn parse(&mut self, buf: &[u8]) -> Result<Option<Parsed>, Error> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => match buf.first() {
                None => return Ok(None),
                Some(b'\n') => return Ok(Some(Parsed::Newline)),
                Some(b'*') => {
                    let Some((count, next)) = number_line(buf, 0)? else { return Ok(None) };
                    if count as usize > COMMAND_ARGS_MAX {
                        return Err(Error::TooManyArgs { count });
                    }
                    self.spans.clear();
                    self.at = next;
                    count as usize
                }
                Some(_) => return self.inline(buf),
            },
        };
        while missing > 0 {
            let Some(end) = self.argument(buf)? else {
                self.missing = Some(missing);
                return Ok(None);
            };
            self.at = end;
            missing -= 1;
        }
        self.missing = None;
        Ok(Some(Parsed::Command { len: self.at }))
    }

    /// The arguments of the command just parsed, or of one that isn't whole those before what it breaks off in; `buf` is the
    /// buffer it was parsed from.
    pub fn args<'a>(&'a self, buf: &'a [u8]) -> Args<'a> {
        Args::new(buf.get(..self.at).unwrap_or_default(), &self.spans)
    }

    /// The argument that `buf`, in which the last command isn't whole, breaks off in; `None` before its length is there.
    ///
    /// The caller may put another one in its place, from `at` on.
    pub fn pending(&self, buf: &[u8]) -> Option<Pending> {
        self.missing.filter(|missing| *missing > 0)?;
        let at = self.at;
        buf.get(at).filter(|byte| **byte == b'$')?;
        let (len, start) = number_line(buf, at).ok()??;
        Some(Pending { index: self.spans.len(), at, start, len: usize::try_from(len).ok()? })
    }

    /// Where the arguments of the command just parsed lie, counted from its first byte.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Reads one `$<len>\r\n<bytes>\r\n`; returns where it ends.
    fn argument(&mut self, buf: &[u8]) -> Result<Option<usize>, Error> {
        let at = self.at;
        match buf.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&found) => return Err(Error::Unexpected { expected: '$', found, at }),
        }
        let Some((len, start)) = number_line(buf, at)? else { return Ok(None) };
        let end = usize::try_from(len).ok().and_then(|len| start.checked_add(len));
        let end = end.filter(|end| *end < COMMAND_BYTES_MAX - 2).ok_or(Error::TooLong)?;
        match buf.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(other) => {
                let found = other.first().copied().filter(|b| *b != b'\r').unwrap_or(b'?');
                return Err(Error::Unexpected { expected: '\r', found, at: end });
            }
        }
        self.spans.push(Span { start: start as u32, end: end as u32 });
        Ok(Some(end + 2))
    }

    /// A command as words on a line, as servers of version 2.4 send their PING.
    fn inline(&mut self, buf: &[u8]) -> Result<Option<Parsed>, Error> {
        let Some(end) = memchr::memchr(b'\n', buf) else {
            if buf.len() > LINE_BYTES_MAX {
                return Err(Error::EndlessLine { at: 0 });
            }
            return Ok(None);
        };
        let line = buf.get(..end).unwrap_or_default();
        if let Some(at) = line.iter().position(|b| !(b.is_ascii_graphic() || matches!(b, b' ' | b'\r'))) {
            let found = line.get(at).copied().unwrap_or(0);
            return Err(Error::Unexpected { expected: '*', found, at });
        }
        self.spans.clear();
        let mut start = None;
        for (i, byte) in line.iter().chain(b" ").enumerate() {
            match (byte, start) {
                (b' ' | b'\r', Some(from)) => {
                    self.spans.push(Span { start: from as u32, end: i as u32 });
                    start = None;
                }
                (b' ' | b'\r', None) => {}
                (_, None) => start = Some(i),
                _ => {}
            }
        }
        self.at = end + 1;
        Ok(Some(Parsed::Command { len: end + 1 }))
    }
}

/// Reads the decimal number between the type byte at `at` and CR LF; returns it and where the next byte lies.
fn number_line(buf: &[u8], at: usize) -> Result<Option<(u64, usize)>, Error> {
    let digits = buf.get(at + 1..).unwrap_or_default();
    let mut number: u64 = 0;
    for (i, &byte) in digits.iter().enumerate() {
        match byte {
            // 18 digits can't overflow.
            b'0'..=b'9' if i < 18 => number = number * 10 + u64::from(byte - b'0'),
            b'\r' if i > 0 => {
                return match digits.get(i + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((number, at + 1 + i + 2))),
                    Some(_) => Err(Error::BadLength { at }),
                };
            }
            _ => return Err(Error::BadLength { at }),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OwnedArgs;
    use proptest::prelude::*;

    #[test]
    fn pending_argument_is_told_once_its_length_is_there() {
        let stream = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\n0123456789\r\n";
        let mut parser = Parser::new();
        let told = |parser: &mut Parser, end: usize| {
            assert_eq!(parser.parse(&stream[..end]), Ok(None));
            parser.pending(&stream[..end])
        };
        assert_eq!((told(&mut parser, 0), told(&mut parser, 3)), (None, None));
        assert_eq!(told(&mut parser, 24), None, "its length isn't whole");
        let pending = Pending { index: 2, at: 20, start: 25, len: 10 };
        assert_eq!((told(&mut parser, 25), told(&mut parser, 30)), (Some(pending), Some(pending)));
        assert_eq!(parser.args(stream).iter().collect::<Vec<_>>(), [b"SET".as_slice(), b"k"]);
        // Another one in its place.
        let other = [&stream[..20], b"$2\r\nab\r\n"].concat();
        assert_eq!(parser.parse(&other), Ok(Some(Parsed::Command { len: other.len() })));
        assert_eq!(parser.args(&other).get(2), Some(&b"ab"[..]));
        assert_eq!(parser.pending(&other), None);
    }

    /// Feeds `stream` in pieces of the given sizes (cycled) and collects the commands' arguments.
    fn collect(stream: &[u8], sizes: &[usize]) -> Result<Vec<Vec<Vec<u8>>>, Error> {
        let (mut parser, mut buf, mut out) = (Parser::new(), Vec::new(), Vec::new());
        let mut rest = stream;
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let take = (*sizes.next().unwrap_or(&1)).clamp(1, rest.len());
            let (piece, later) = rest.split_at(take);
            buf.extend_from_slice(piece);
            rest = later;
            while let Some(parsed) = parser.parse(&buf)? {
                let len = match parsed {
                    Parsed::Newline => 1,
                    Parsed::Command { len } => {
                        out.push(parser.args(&buf).iter().map(<[u8]>::to_vec).collect());
                        len
                    }
                };
                buf.drain(..len);
            }
        }
        assert!(buf.is_empty(), "left over: {buf:?}");
        Ok(out)
    }

    proptest! {
        #[test]
        fn parse_at_any_split_gives_the_same_commands(
            commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), 1..8),
            sizes in prop::collection::vec(1usize..40, 1..6),
        ) {
            let mut stream = Vec::new();
            for command in &commands {
                stream.extend_from_slice(OwnedArgs::new(command).args().raw());
                stream.push(b'\n');
            }
            prop_assert_eq!(&collect(&stream, &[stream.len()]).unwrap(), &commands);
            prop_assert_eq!(&collect(&stream, &[1]).unwrap(), &commands);
            prop_assert_eq!(&collect(&stream, &sizes).unwrap(), &commands);
        }

        #[test]
        fn parse_of_any_bytes_ends_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = Parser::new();
            let mut buf = &bytes[..];
            while let Ok(Some(parsed)) = parser.parse(buf) {
                buf = match parsed { Parsed::Newline => &buf[1..], Parsed::Command { len } => &buf[len..] };
            }
        }
    }

    #[test]
    fn parse_inline_ping_counts_its_bytes() {
        let mut parser = Parser::new();
        assert_eq!(parser.parse(b"PING\r\n*1"), Ok(Some(Parsed::Command { len: 6 })));
        assert_eq!(parser.args(b"PING\r\n").get(0), Some(&b"PING"[..]));
    }

    #[test]
    fn parse_resumes_a_long_command_where_it_stopped() {
        let args: Vec<String> = (0..200_000).map(|i| i.to_string()).collect();
        let owned = OwnedArgs::new(&args);
        assert_eq!(collect(owned.args().raw(), &[16 * 1024]).unwrap()[0].len(), 200_000);
    }

    #[test]
    fn parse_limits_refuse_what_lies_past_them() {
        let over = format!("*{}\r\n", COMMAND_ARGS_MAX + 1);
        assert!(matches!(Parser::new().parse(over.as_bytes()), Err(Error::TooManyArgs { .. })));
        let at = format!("*{COMMAND_ARGS_MAX}\r\n");
        assert_eq!(Parser::new().parse(at.as_bytes()), Ok(None));
        let huge = format!("*1\r\n${COMMAND_BYTES_MAX}\r\n");
        assert_eq!(Parser::new().parse(huge.as_bytes()), Err(Error::TooLong));
        assert_eq!(Parser::new().parse(b"*1\r\n$9999999999999999999\r\n"), Err(Error::BadLength { at: 4 }));
        assert!(Parser::new().parse(&vec![b'a'; LINE_BYTES_MAX + 1]).is_err());
    }
}
