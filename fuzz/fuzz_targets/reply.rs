//! Replies of servers: the scanner sees the same at any split, and the tree parser never panics.
#![no_main]

use keyferry::resp::reply::{Reply, Scanned, Scanner};
use keyferry_fuzz::{pieces, steer};
use libfuzzer_sys::fuzz_target;

fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut scanner = Scanner::new();
    let mut buf: Vec<u8> = Vec::new();
    let mut seen = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            let (len, scanned) = match scanner.scan(&buf) {
                Ok((len, scanned)) => (len, scanned.map(|s: Scanned| format!("{s:?}"))),
                Err(error) => {
                    seen.push(error.to_string());
                    return seen;
                }
            };
            assert!(len <= buf.len());
            buf.drain(..len);
            match scanned {
                Some(words) => seen.push(words),
                None => break,
            }
        }
    }
    seen
}

fuzz_target!(|data: &[u8]| {
    let Some((cuts, replies)) = steer::<4>(data) else { return };
    assert_eq!(scan([replies]), scan(pieces(&cuts, replies)));
    let mut rest = replies;
    while let Ok(Some((_, len))) = Reply::parse(rest) {
        assert!(len > 0 && len <= rest.len());
        rest = &rest[len..];
    }
});
