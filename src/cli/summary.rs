//! The words at the end of a job.

use std::collections::BTreeMap;

use super::numbers;
use crate::status::{Ending, Summary};

/// What a job has done, and how to go on if it isn't complete.
pub fn text(summary: &Summary) -> String {
    if let Ending::Finished | Ending::Forgotten { .. } = summary.ending {
        return finished(summary);
    }
    let keys: u64 = summary.keys.values().sum();
    let mut lines = vec![headline(summary), format!("keys: {keys}")];
    lines.extend(key_lines(summary));
    lines.extend(skipped_line(summary));
    if !summary.losses.is_empty() {
        let all: u64 = summary.losses.values().sum();
        let kinds = summary.losses.iter().map(|(what, n)| format!("{n} without {what}"));
        lines.push(format!("lossy: {all} ({})", join(kinds)));
    }
    if summary.keys_expired > 0 {
        lines.push(format!("expired: {}", summary.keys_expired));
    }
    lines.push(format!("commands: {}", summary.commands_applied));
    if summary.replies_unseen > 0 {
        lines.push(format!("replies unseen: {}", summary.replies_unseen));
    }
    if summary.transactions_split > 0 {
        lines.push(format!("transactions split over slots: {}", summary.transactions_split));
    }
    lines.extend(settled_line(summary));
    if !summary.errors.is_empty() {
        let kinds = summary.errors.iter().map(|(kind, n)| format!("{n} {kind}"));
        lines.push(format!("errors: {}", join(kinds)));
    }
    lines.push(format!("bytes: {} to the target", numbers::bytes(summary.bytes_to_target)));
    lines.push(format!("duration: {}", numbers::duration(summary.elapsed)));
    lines.push(format!(
        "rate: {} keys/s, {}/s",
        numbers::per_second(keys, summary.elapsed),
        numbers::bytes(numbers::per_second(summary.bytes_to_target, summary.elapsed))
    ));
    match summary.offsets.as_slice() {
        [] => {}
        [(_, offset)] => lines.push(format!("source offset: {offset}")),
        shards => {
            lines.push("source offsets:".to_owned());
            lines.extend(shards.iter().map(|(source, offset)| format!("  {source}: {offset}")));
        }
    }
    if let Some(how) = how_to_go_on(summary) {
        lines.push(how);
    }
    lines.join("\n") + "\n"
}

/// What `finish` has done.
fn finished(summary: &Summary) -> String {
    let mut lines = vec![headline(summary)];
    match summary.ending {
        Ending::Forgotten { late } if !late.is_zero() => lines.push(format!(
            "expiries: stay as keyferry wrote them, {} late; only finish without --source-gone sets the true times",
            numbers::duration(late)
        )),
        Ending::Forgotten { .. } => {}
        _ => lines.extend(settled_line(summary).or(Some("settled: nothing that expires".to_owned()))),
    }
    lines.push(format!("duration: {}", numbers::duration(summary.elapsed)));
    lines.join("\n") + "\n"
}

/// `settled: N keys, M hash fields`, where expiries were late.
fn settled_line(summary: &Summary) -> Option<String> {
    let (keys, fields) = (summary.keys_settled, summary.fields_settled);
    (keys + fields > 0).then(|| format!("settled: {keys} keys and {fields} hash fields got their true expiry"))
}

fn headline(summary: &Summary) -> String {
    match summary.ending {
        Ending::Complete => format!("done: job {} is complete", summary.job),
        Ending::Stopped => format!("stopped: job {} was following", summary.job),
        Ending::StoppedInCopy => {
            format!("stopped: job {}, its copy is not complete", summary.job)
        }
        Ending::Finished => format!("done: job {} is finished, its records are removed", summary.job),
        Ending::Forgotten { .. } => {
            format!("done: the records of job {} are removed", summary.job)
        }
    }
}

/// One line for each database.
fn key_lines(summary: &Summary) -> Vec<String> {
    let mut databases: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for ((database, kind), count) in &summary.keys {
        let kinds = databases.entry(*database).or_default();
        kinds.push(format!("{count} {kind}"));
    }
    databases.iter().map(|(database, kinds)| format!("  database {database}: {}", kinds.join(", "))).collect()
}

/// `skipped: N` with its parts, where something was left out on purpose.
fn skipped_line(summary: &Summary) -> Option<String> {
    let parts = [
        (summary.keys_filtered, "keys out of scope"),
        (summary.commands_filtered, "commands out of scope"),
        (summary.keys_kept, "keys kept as they were"),
        (summary.commands_skipped, "commands skipped"),
    ];
    let all: u64 = parts.iter().map(|(count, _)| count).sum();
    let some = parts.iter().filter(|(count, _)| *count > 0);
    let words = join(some.map(|(count, what)| format!("{count} {what}")));
    (all > 0).then(|| format!("skipped: {all} ({words})"))
}

/// How to take the job up again, and how to end it.
fn how_to_go_on(summary: &Summary) -> Option<String> {
    match summary.ending {
        Ending::Complete | Ending::Finished | Ending::Forgotten { .. } => None,
        Ending::Stopped => Some(
            "to go on: run the same command; to end the job: keyferry finish with the same options, which also gives \
             keys their true expiry (until then they expire --expiry-grace late)"
                .to_owned(),
        ),
        Ending::StoppedInCopy => Some("to go on: run the same command; it copies again".to_owned()),
    }
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::offset::ReplOffset;
    use crate::status::{Status, Tally};

    fn summary() -> Summary {
        let status = Status::new("j");
        let mut tally = Tally::default();
        for (database, kind) in [(0, "string"), (0, "hash"), (0, "string"), (5, "zset")] {
            tally.add(database, kind);
        }
        status.add_shard(0, "h:1").copied.merge(&mut tally);
        assert_eq!(tally, Tally::default());
        status.commands_applied.set(7);
        status.bytes_to_target.set(3 << 20);
        Summary { elapsed: Duration::from_secs(2), ..status.summary(Ending::Complete) }
    }

    #[test]
    fn text_of_a_complete_job_without_trouble() {
        let want = "done: job j is complete\nkeys: 4\n  database 0: 1 hash, 2 string\n  database 5: 1 zset\n\
                    commands: 7\nbytes: 3.0 MiB to the target\nduration: 2.0 s\nrate: 2 keys/s, 1.5 MiB/s\n";
        assert_eq!(text(&summary()), want);
    }

    #[test]
    fn text_of_a_stopped_job_tells_what_is_missing_and_how_to_go_on() {
        let stopped = Summary {
            ending: Ending::Stopped,
            keys_filtered: 10,
            commands_skipped: 1,
            transactions_split: 0,
            keys_expired: 2,
            replies_unseen: 3,
            losses: [("expiry of hash fields", 3), ("idempotent producers", 1)].into(),
            errors: [("OOM".to_owned(), 4), ("connection".to_owned(), 1)].into(),
            offsets: vec![("h:1".to_owned(), ReplOffset(123))],
            ..summary()
        };
        let text = text(&stopped);
        for line in [
            "stopped: job j was following",
            "skipped: 11 (10 keys out of scope, 1 commands skipped)",
            "lossy: 4 (3 without expiry of hash fields, 1 without idempotent producers)",
            "expired: 2",
            "replies unseen: 3",
            "errors: 4 OOM, 1 connection",
            "source offset: 123",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(text.lines().last().unwrap().starts_with("to go on: "), "{text}");
    }
}
