//! What a user lacks whom a server refuses with `NOPERM`.

use super::Side;

/// The ACL rule that is missing, as `+psync`, `~*` or `&*`; `None` if `words` aren't about a permission.
///
/// Source: redis 7.0 src/acl.c, getAclErrorMessage; redis 6.0 src/server.c, processCommand.
pub fn missing_rule(words: &str) -> Option<String> {
    let (_, words) = words.split_once("NOPERM")?;
    if let Some((_, rest)) = words.split_once("run the '")
        && let Some((command, _)) = rest.split_once('\'')
    {
        return Some(format!("+{}", command.to_ascii_lowercase()));
    }
    if words.contains("channel") {
        return Some("&*".into());
    }
    if words.contains("access") && words.contains("key") {
        return Some("~*".into());
    }
    None
}

/// What to do about a refusal with `NOPERM`; `None` if `words` aren't one.
pub fn hint(words: &str, side: Side) -> Option<String> {
    let rule = missing_rule(words)?;
    Some(format!("the {side}'s user lacks a permission: ACL SETUSER <user> {rule} (the README has all that it needs)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rule_is_read_from_the_words_of_every_version() {
        for (words, rule) in [
            ("NOPERM User mover has no permissions to run the 'psync' command", Some("+psync")),
            ("NOPERM this user has no permissions to run the 'DUMP' command or its subcommand", Some("+dump")),
            ("NOPERM User a has no permissions to run the 'client|kill' command", Some("+client|kill")),
            ("NOPERM No permissions to access a key", Some("~*")),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", Some("~*")),
            ("NOPERM No permissions to access a channel", Some("&*")),
            ("NOPERM this user has no permissions to access one of the channels used as arguments", Some("&*")),
            ("EXECABORT Transaction discarded because of: NOPERM No permissions to access a key", Some("~*")),
            ("NOPERM something new", None),
            ("ERR unknown command 'PSYNC'", None),
        ] {
            assert_eq!(missing_rule(words).as_deref(), rule, "{words}");
        }
    }
}
