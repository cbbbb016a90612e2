//! The replication stream's parser: any bytes, whole and at any split, give the same commands and the same end.
#![no_main]

use keyferry::resp::command::{Error, Parsed, Parser};
use keyferry_fuzz::{pieces, steer};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, PartialEq)]
enum Seen {
    Command(Vec<Vec<u8>>, usize),
    Newline,
    End(Error),
}

fn commands<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Seen>, usize) {
    let mut parser = Parser::new();
    let mut buf: Vec<u8> = Vec::new();
    let mut seen = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            let len = match parser.parse(&buf) {
                Ok(None) => break,
                Ok(Some(Parsed::Newline)) => {
                    seen.push(Seen::Newline);
                    1
                }
                Ok(Some(Parsed::Command { len })) => {
                    let args = parser.args(&buf);
                    assert_eq!(args.raw().len(), len);
                    seen.push(Seen::Command(args.iter().map(<[u8]>::to_vec).collect(), len));
                    len
                }
                Err(error) => {
                    seen.push(Seen::End(error));
                    return (seen, 0);
                }
            };
            assert!(len > 0 && len <= buf.len(), "a command of {len} bytes in {}", buf.len());
            buf.drain(..len);
        }
    }
    (seen, buf.len())
}

fuzz_target!(|data: &[u8]| {
    let Some((cuts, stream)) = steer::<4>(data) else { return };
    assert_eq!(commands([stream]), commands(pieces(&cuts, stream)));
});
