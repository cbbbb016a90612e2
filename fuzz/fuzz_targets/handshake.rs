//! The lines and INFO by which a server joins us to its stream: any words are judged, and a snapshot ends at its length however
//! it comes.
#![no_main]

use keyferry::delivery::refusal::{is_redirection, reason, refusal};
use keyferry::net::info::Info;
use keyferry::net::{Side, permission};
use keyferry::repl::handshake::refused;
use keyferry::repl::resync::{Framing, Piece, SnapshotEnd, framing, psync_answer};
use keyferry_fuzz::{pieces, steer};
use libfuzzer_sys::fuzz_target;

/// Where the snapshot ends in what comes: its last piece and the length of that, or nowhere yet.
fn end<'a>(framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<usize> {
    let (mut end, mut before) = (SnapshotEnd::new(framing), 0);
    for piece in pieces {
        if let Piece::Last(length) = end.take(piece) {
            assert!(length <= piece.len());
            return Some(before + length);
        }
        before += piece.len();
        assert_eq!(end.received(), before as u64);
    }
    None
}

fuzz_target!(|data: &[u8]| {
    let Some((cuts, text)) = steer::<4>(data) else { return };
    let (line, rest) = text.split_at(text.iter().position(|b| *b == b'\n').unwrap_or(text.len()));
    let _ = psync_answer(line);
    match framing(line).filter(|_| !rest.is_empty()) {
        Some(length @ Framing::Length(_)) => assert_eq!(end(length, [rest]), end(length, pieces(&cuts, rest))),
        // A mark counts at the end of what came together only.
        Some(mark @ Framing::Mark(_)) => assert_eq!(end(mark, [rest]).is_some(), rest.ends_with(&line[5..])),
        // Nothing came of the snapshot yet, or it is none.
        None => {}
    }
    let words = String::from_utf8_lossy(line);
    let _ = (refused(&words), refusal(&words), is_redirection(&words), reason(&words));
    let _ = (permission::missing_rule(&words), permission::hint(&words, Side::Source));

    let info = Info::parse(text);
    let _ = (info.version(), info.product(), info.replica_offsets(), info.online_replicas());
    for (db, _) in info.keyspace() {
        let _ = (info.expires(db), info.expiring_hashes(db));
    }
});
