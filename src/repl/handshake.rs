//! What a replica says before it asks for data.

/// The version we announce: a Valkey 9 primary then sends its own RDB version, which has hash fields with expiry.
const ANNOUNCED_VERSION: &[u8] = b"9.1.0";

/// The commands between AUTH and PSYNC, in order. Each is answered before the next is sent.
///
/// No `rdb-channel-repl`, `dual-channel`, `compression` or `rdb-no-checksum`: see the reference on what they change.
pub const STEPS: [&[&[u8]]; 3] =
    [&[b"PING"], &[b"REPLCONF", b"version", ANNOUNCED_VERSION], &[b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"]];

/// What an error answer to one of the [`STEPS`] means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The server doesn't know the option, or the user may not use it: go on.
    Harmless,
    /// It wants a password.
    NoAuth,
    /// It isn't ready yet.
    Later,
    /// The user may not say what a replica must say, while the stream goes on, too.
    NoPermission,
}

/// Judges the error text (without `-`) that a step was answered with.
pub fn refused(words: &str) -> Refused {
    match words.split(' ').next().unwrap_or_default() {
        "NOAUTH" => Refused::NoAuth,
        "LOADING" | "MASTERDOWN" | "BUSY" => Refused::Later,
        _ if words.starts_with("ERR operation not permitted") => Refused::NoAuth,
        "NOPERM" if words.to_ascii_lowercase().contains("'replconf") => Refused::NoPermission,
        _ => Refused::Harmless,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_step_is_harmless_unless_the_server_says_otherwise() {
        assert_eq!(refused("ERR Unrecognized REPLCONF option: version"), Refused::Harmless);
        assert_eq!(refused("NOPERM this user has no permissions to run the 'ping' command"), Refused::Harmless);
        let words = "NOPERM User mover has no permissions to run the 'replconf' command";
        assert_eq!(refused(words), Refused::NoPermission);
        assert_eq!(refused("NOAUTH Authentication required."), Refused::NoAuth);
        assert_eq!(refused("ERR operation not permitted"), Refused::NoAuth);
        assert_eq!(refused("LOADING Redis is loading the dataset in memory"), Refused::Later);
    }
}
