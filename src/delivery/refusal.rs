//! What an error answer of the target means for what was sent.

/// Whether the same bytes may go through later, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Will pass: wait and send the same again on the same connection.
    Passing,
    /// Will pass, but the server may be another one now: close, find the primary, connect again, read the records.
    Elsewhere,
    /// The target will never take it.
    ForGood,
}

/// Tells what the error text `words` (without the leading `-`) means.
pub fn refusal(words: &str) -> Refusal {
    let code = words.split(' ').next().unwrap_or(words);
    match code {
        "OOM" | "BUSY" | "NOREPLICAS" | "MISCONF" | "TRYAGAIN" | "ASK" => Refusal::Passing,
        "READONLY" | "MASTERDOWN" | "LOADING" | "CLUSTERDOWN" | "MOVED" | "UNBLOCKED" => Refusal::Elsewhere,
        "EXECABORT" => reason(words).map_or(Refusal::Elsewhere, refusal),
        _ if ELSEWHERE.iter().any(|text| words.contains(text)) => Refusal::Elsewhere,
        _ => Refusal::ForGood,
    }
}

/// True if a cluster says that a key is, or may be, at another node.
pub fn is_redirection(words: &str) -> bool {
    matches!(words.split(' ').next(), Some("MOVED" | "ASK" | "TRYAGAIN"))
}

/// Errors without a code of their own that a connection out of step or a demoted server answers.
const ELSEWHERE: [&str; 3] = [
    "EXEC without MULTI",
    "MULTI calls can not be nested",
    "Transaction contains write commands but instance is now a read-only",
];

/// Why EXEC was aborted, where the server says it in the abort itself (7.0 and later).
pub fn reason(words: &str) -> Option<&str> {
    words.split_once("because of: ").map(|(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_goes_by_the_whole_code() {
        assert_eq!(refusal("OOM command not allowed when used memory > 'maxmemory'."), Refusal::Passing);
        assert_eq!(refusal("BUSY Redis is busy running a script."), Refusal::Passing);
        assert_eq!(refusal("BUSYGROUP Consumer Group name already exists"), Refusal::ForGood);
        assert_eq!(refusal("BUSYKEY Target key name already exists."), Refusal::ForGood);
        assert_eq!(refusal("READONLY You can't write against a read only replica."), Refusal::Elsewhere);
        assert_eq!(refusal("ERR EXEC without MULTI"), Refusal::Elsewhere);
        assert_eq!(refusal("WRONGTYPE Operation against a key"), Refusal::ForGood);
        assert_eq!(refusal("NOPERM this user has no permissions"), Refusal::ForGood);
    }

    #[test]
    fn redirection_goes_by_the_whole_code() {
        let told = ["MOVED 1 h:1", "ASK 1 h:1", "TRYAGAIN Multiple keys", "TRYAGAIN", "ASKING", "CLUSTERDOWN x"];
        assert_eq!(told.map(is_redirection), [true, true, true, true, false, false]);
    }

    #[test]
    fn refusal_of_an_abort_follows_its_reason() {
        let abort = "EXECABORT Transaction discarded because of: OOM command not allowed";
        assert_eq!(refusal(abort), Refusal::Passing);
        assert_eq!(refusal("EXECABORT Transaction discarded because of: NOPERM no"), Refusal::ForGood);
    }
}
