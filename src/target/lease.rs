//! The lease of a job as a value: who holds it, whether that process lives, and whether another may take it.

use std::fmt::Write;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// How long a lease stands without being renewed.
pub const LEASE_MS: u64 = 10_000;

/// A holder of whom nothing is known but its connections counts as dead when it had none for so long.
pub const QUIET_MIN: Duration = Duration::from_secs(1);

/// How long connections of a job may outlive what they belonged to: a server notices a killed process with a delay, and
/// a lease that a FLUSHALL wiped is written again by an owner that lives.
pub const LINGER_MAX: Duration = Duration::from_millis(1500);

/// The format's version, first word of every lease.
const VERSION: &str = "kf1";

/// The longest host name that is kept.
const HOST_BYTES_MAX: usize = 64;

/// Who owns a job: a run of it, as a process of a machine.
///
/// `boot`, `pid_space` and `started` tell whether a process id means here what it means there: containers of one host
/// name have process ids of their own, machines start again, and ids are used again. Empty or 0 where they can't be told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lease {
    pub token: String,
    pub host: String,
    pub pid: u32,
    boot: String,
    pid_space: String,
    /// When the process started, in clock ticks since the machine did.
    started: u64,
}

/// What this machine knows of the process that holds a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Dead,
    Alive,
    /// It's a process of another machine or container.
    Unknown,
}

/// What CLIENT LIST shows of other runs of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Connections of the lease's holder; without a lease, of anybody else.
    pub connected: bool,
    /// For how long that, and the lease's holder, has been so.
    pub unchanged: Duration,
}

/// Whether a starter may take the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Take,
    /// Not to be told yet.
    Wait,
    Refuse,
}

/// Whether `me` may take a job whose lease is `lease`.
///
/// Whom it's taken from is killed afterwards: the lease only keeps two that live from killing each other in turns.
pub fn may_take(lease: Option<&Lease>, me: &Lease, holder: Holder, seen: Seen, takeover: bool) -> Verdict {
    let Some(lease) = lease else {
        let settled = !seen.connected || takeover || seen.unchanged >= LINGER_MAX;
        return if settled { Verdict::Take } else { Verdict::Wait };
    };
    if takeover || lease.token == me.token {
        return Verdict::Take;
    }
    match holder {
        Holder::Dead => Verdict::Take,
        Holder::Alive => Verdict::Refuse,
        Holder::Unknown if seen.connected && seen.unchanged >= LINGER_MAX => Verdict::Refuse,
        Holder::Unknown if !seen.connected && seen.unchanged >= QUIET_MIN => Verdict::Take,
        Holder::Unknown => Verdict::Wait,
    }
}

impl Lease {
    /// The lease that this process writes.
    pub fn of_this_process(token: String) -> Lease {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let pid = std::process::id();
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Lease {
            token,
            host: word(&read("/proc/sys/kernel/hostname")),
            pid,
            boot: word(&read("/proc/sys/kernel/random/boot_id")),
            pid_space: word(&space.to_string_lossy()),
            started: stat(&read(&format!("/proc/{pid}/stat"))).map_or(0, |(_, started)| started),
        }
    }

    /// The lease's text: words `name=value` behind the version.
    pub fn encode(&self) -> String {
        let mut out = String::with_capacity(160);
        // Writing to a String can't fail.
        let _ = write!(out, "{VERSION} token={} host={}", self.token, self.host);
        let _ = write!(out, " pid={} start={}", self.pid, self.started);
        let _ = write!(out, " boot={} ns={}", self.boot, self.pid_space);
        out
    }

    /// Reads a lease. What isn't there or is bad is empty: whatever stands there is a lease, even of another version.
    pub fn parse(text: &[u8]) -> Lease {
        let text = String::from_utf8_lossy(text);
        let mut lease = Lease::default();
        for (name, value) in text.split(' ').filter_map(|w| w.split_once('=')) {
            match name {
                "token" => lease.token = word(value),
                "host" => lease.host = word(value),
                "pid" => lease.pid = value.parse().unwrap_or(0),
                "start" => lease.started = value.parse().unwrap_or(0),
                "boot" => lease.boot = word(value),
                "ns" => lease.pid_space = word(value),
                _ => {}
            }
        }
        lease
    }

    /// What is known of the process that holds this lease, to the process of `me`.
    pub fn holder(&self, me: &Lease) -> Holder {
        if !self.is_neighbour(me) {
            return Holder::Unknown;
        }
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Holder::Unknown;
        };
        // A process of another user may be hidden in /proc, but not from signals.
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return Holder::Dead;
        }
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        self.judge(&text)
    }

    /// Whether process ids mean the same to the holder as to the process of `me`.
    fn is_neighbour(&self, me: &Lease) -> bool {
        let known = [&self.host, &self.boot, &self.pid_space];
        known.iter().all(|word| !word.is_empty()) && known == [&me.host, &me.boot, &me.pid_space] && self.started != 0
    }

    /// What the line in `/proc/<pid>/stat` says of the holder.
    fn judge(&self, line: &str) -> Holder {
        match stat(line) {
            None => Holder::Unknown,
            // Killed, and its parent hasn't asked yet.
            Some(("Z" | "X", _)) => Holder::Dead,
            Some((_, started)) if started != self.started => Holder::Dead,
            Some(_) => Holder::Alive,
        }
    }
}

/// State and start time in a line of `/proc/<pid>/stat`. Source: proc_pid_stat(5), fields 3 and 22.
fn stat(line: &str) -> Option<(&str, u64)> {
    // The program's name, in parentheses, may hold anything.
    let (_, rest) = line.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let state = words.next()?;
    Some((state, words.nth(18)?.parse().ok()?))
}

/// `text` as one word of a lease.
fn word(text: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    let text = text.trim().chars().take(HOST_BYTES_MAX);
    text.map(|c| if kept(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(token: &str) -> Lease {
        Lease::of_this_process(token.into())
    }

    fn seen(connected: bool, ms: u64) -> Seen {
        Seen { connected, unchanged: Duration::from_millis(ms) }
    }

    #[test]
    fn lease_round_trips_and_bad_text_is_a_lease_of_nobody_known() {
        let lease = lease("t1");
        assert_eq!(Lease::parse(lease.encode().as_bytes()), lease);
        let odd = Lease { host: word("a b=c\n"), ..lease };
        assert_eq!(odd.host, "a_b_c");
        assert_eq!(Lease::parse(odd.encode().as_bytes()), odd);
        assert_eq!(Lease::parse(b"\xff pid=x kf9"), Lease::default());
    }

    #[test]
    fn free_lease_is_taken_but_not_from_under_an_owner_that_writes_it_again() {
        let me = lease("me");
        let take = |seen, takeover| may_take(None, &me, Holder::Unknown, seen, takeover);
        assert_eq!(take(seen(false, 0), false), Verdict::Take);
        assert_eq!(take(seen(true, 1499), false), Verdict::Wait);
        assert_eq!(take(seen(true, 1500), false), Verdict::Take);
        assert_eq!(take(seen(true, 0), true), Verdict::Take);
    }

    #[test]
    fn held_lease_is_taken_from_the_dead_and_with_takeover_only() {
        let (me, other) = (lease("me"), lease("other"));
        let take = |holder, seen| may_take(Some(&other), &me, holder, seen, false);
        assert_eq!(take(Holder::Dead, seen(true, 0)), Verdict::Take);
        assert_eq!(take(Holder::Alive, seen(false, 9999)), Verdict::Refuse);
        assert_eq!(take(Holder::Unknown, seen(false, 999)), Verdict::Wait);
        assert_eq!(take(Holder::Unknown, seen(false, 1000)), Verdict::Take);
        assert_eq!(take(Holder::Unknown, seen(true, 1499)), Verdict::Wait);
        assert_eq!(take(Holder::Unknown, seen(true, 1500)), Verdict::Refuse);
        let forced = may_take(Some(&other), &me, Holder::Alive, seen(true, 0), true);
        assert_eq!(forced, Verdict::Take);
        let own = may_take(Some(&me), &me, Holder::Alive, seen(true, 0), false);
        assert_eq!(own, Verdict::Take);
    }

    #[test]
    fn holder_of_this_machine_lives_until_its_process_ends() {
        let me = lease("me");
        assert_eq!(me.holder(&me), Holder::Alive);
        let reused = Lease { started: me.started + 1, ..me.clone() };
        assert_eq!(reused.holder(&me), Holder::Dead);
        // Beyond the largest process id of any Linux.
        let gone = Lease { pid: (1 << 22) + 1, ..me.clone() };
        assert_eq!(gone.holder(&me), Holder::Dead);
        let zombie = "7 (a) b) Z 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 55 0";
        assert_eq!(stat(zombie), Some(("Z", 55)));
        assert_eq!(Lease { started: 55, ..me.clone() }.judge(zombie), Holder::Dead);
        assert_eq!(me.judge(""), Holder::Unknown);
    }

    #[test]
    fn holder_elsewhere_is_unknown() {
        let me = lease("me");
        let others = [
            Lease { host: "elsewhere".into(), ..me.clone() },
            Lease { boot: "other".into(), ..me.clone() },
            Lease { pid_space: "pid:[1]".into(), ..me.clone() },
            Lease { started: 0, ..me.clone() },
            Lease { pid: 0, ..me.clone() },
            Lease::parse(b""),
        ];
        for other in others {
            assert_eq!(other.holder(&me), Holder::Unknown, "{other:?}");
        }
    }
}
