//! Reads a job file, and says of a mistake where it is and what was probably meant.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::raw::{KEYS, Raw};
use super::{Error, nearest};
use crate::net::secret::hide_credentials;

/// A longer file isn't a job file.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Sections that only RedisShake's files have.
const SHAKE_SECTIONS: &[&str] =
    &["sync_reader", "scan_reader", "rdb_reader", "aof_reader", "redis_writer", "file_writer"];

/// Options whose key in a job file is another word: section and key.
const OPTION_KEYS: &[(&str, &str, &str)] = &[
    ("source", "source", "url"),
    ("target", "target", "url"),
    ("db", "filter", "databases"),
    ("db_map", "filter", "database_map"),
    ("key_regex", "filter", "key_regexes"),
    ("not_key", "filter", "not_keys"),
    ("not_key_regex", "filter", "not_key_regexes"),
    ("type", "filter", "types"),
    ("not_command", "filter", "not_commands"),
    ("flush_target", "target", "flush"),
    ("log_level", "log", "level"),
    ("log_format", "log", "format"),
    ("log_file", "log", "file"),
    ("password", "source", "password_file"),
];

/// Reads a job file.
///
/// # Errors
/// `Read`, or `File` with the line of the first mistake.
pub fn read(path: &Path) -> Result<Raw, Error> {
    let bytes = std::fs::metadata(path).and_then(|meta| {
        if meta.len() > FILE_BYTES_MAX {
            let words = format!("longer than {FILE_BYTES_MAX} bytes");
            return Err(std::io::Error::other(words));
        }
        std::fs::read_to_string(path)
    });
    let text = bytes.map_err(|error| Error::Read { path: path.to_owned(), error })?;
    parse(path, &text)
}

/// Reads the text of a job file; `path` is for messages alone.
///
/// # Errors
/// `File` with the line of the first mistake.
pub fn parse(path: &Path, text: &str) -> Result<Raw, Error> {
    let at = |offset: usize, message: String, hint: Option<String>| Error::File {
        path: path.to_owned(),
        line: line_of(text, offset),
        message,
        hint,
    };
    let from_toml = |error: toml::de::Error| {
        // Only the message: the error's own Display quotes the line, which may hold a password.
        let offset = error.span().map_or(0, |span| span.start);
        at(offset, hide_credentials(&in_plain_words(error.message())), None)
    };
    let table = DeTable::parse(text).map_err(from_toml)?;
    if let Some(mistake) = find_unknown(table.get_ref()) {
        return Err(at(mistake.offset, mistake.message, mistake.hint));
    }
    toml::from_str(text).map_err(from_toml)
}

/// A message about a value of the wrong type, without the words of the library that found it: `expected a whole number,
/// found the text "x"`. Other messages stay as they are.
fn in_plain_words(message: &str) -> String {
    let told = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let Some((found, expected)) = told.and_then(|told| told.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let expected = match expected {
        "a boolean" => "true or false",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "a string" | "path string" => "text in quotes",
        "a sequence" => "a list, as [1, 2] or [\"a\", \"b\"]",
        "a map" => "a table, as { 2 = 0 }",
        other => other,
    };
    let found = match found.split_once(' ') {
        Some(("string", text)) => format!("the text {text}"),
        Some(("integer" | "boolean", value)) => value.replace('`', ""),
        Some(("floating", value)) => value.trim_start_matches("point ").replace('`', ""),
        None if found == "sequence" => "a list".to_owned(),
        None if found == "map" => "a table".to_owned(),
        _ => found.to_owned(),
    };
    format!("expected {expected}, found {found}")
}

/// The line of a byte, from 1.
fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

struct Mistake {
    offset: usize,
    message: String,
    hint: Option<String>,
}

/// The first key, in the order of the file, that no job file has.
fn find_unknown(top: &DeTable<'_>) -> Option<Mistake> {
    let mut mistakes = Vec::new();
    for (name, value) in top {
        let offset = name.span().start;
        let section = name.get_ref().as_ref();
        if SHAKE_SECTIONS.contains(&section) {
            return Some(Mistake {
                offset,
                message: format!("[{section}]: this is a RedisShake file, which is not supported yet"),
                hint: Some("write its endpoints and filters as a keyferry job: keyferry sync --help".into()),
            });
        }
        match (keys_of(section), value.get_ref()) {
            (Some(keys), DeValue::Table(table)) => {
                let unknown = table.keys().filter(|key| !keys.contains(&key.get_ref().as_ref()));
                mistakes.extend(unknown.map(|key| unknown_key(key.span().start, section, key.get_ref(), keys)));
            }
            (Some(_), _) => mistakes.push(Mistake {
                offset,
                message: format!("'{section}' is a section, not a value"),
                hint: Some(format!("write [{section}] on a line of its own, its keys below it")),
            }),
            (None, DeValue::Table(_)) => mistakes.push(Mistake {
                offset,
                message: format!("unknown section [{section}]"),
                hint: hint_for(section, &section_names()),
            }),
            (None, _) if keys_of("").is_some_and(|keys| keys.contains(&section)) => {}
            (None, _) => {
                let keys = keys_of("").unwrap_or_default();
                mistakes.push(unknown_key(offset, "", section, keys));
            }
        }
    }
    mistakes.into_iter().min_by_key(|mistake| mistake.offset)
}

fn unknown_key(offset: usize, section: &str, key: &str, keys: &[&str]) -> Mistake {
    let place = if section.is_empty() { "at the top of the file".to_owned() } else { format!("in [{section}]") };
    Mistake { offset, message: format!("unknown key '{key}' {place}"), hint: hint_for(key, keys) }
}

/// What `word` was probably meant to be: an option's key, a key of another section, or the nearest of `names`.
fn hint_for(word: &str, names: &[&str]) -> Option<String> {
    let plain = word.to_ascii_lowercase().replace('-', "_");
    if plain == "password" {
        return Some(
            "give it in url, in a file (password_file), or in KEYFERRY_SOURCE_PASSWORD or KEYFERRY_TARGET_PASSWORD"
                .into(),
        );
    }
    if names.contains(&plain.as_str()) {
        return Some(format!("did you mean '{plain}'?"));
    }
    let option = OPTION_KEYS.iter().find(|(option, ..)| *option == plain);
    if let Some((_, section, key)) = option {
        return Some(format!("in a job file this is '{key}' in [{section}]"));
    }
    let near = nearest(&plain, names.iter().copied());
    let elsewhere = || {
        let (section, keys) = KEYS.iter().find(|(_, keys)| nearest(&plain, keys.iter().copied()).is_some())?;
        let key = nearest(&plain, keys.iter().copied())?;
        Some(match *section {
            "" => format!("'{key}' belongs at the top of the file, before every section"),
            section => format!("'{key}' belongs in [{section}]"),
        })
    };
    near.map(|near| format!("did you mean '{near}'?"))
        .or_else(elsewhere)
        .or_else(|| Some(format!("known here: {}", names.join(", "))))
}

fn keys_of(section: &str) -> Option<&'static [&'static str]> {
    let found = KEYS.iter().find(|(name, _)| *name == section);
    found.map(|(_, keys)| *keys)
}

fn section_names() -> Vec<&'static str> {
    let names = KEYS.iter().map(|(name, _)| *name);
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a job file as the user sees it.
    fn said(text: &str) -> String {
        match parse(Path::new("j.toml"), text) {
            Ok(raw) => panic!("taken: {raw:?}"),
            Err(error) => format!("{error} | {}", error.hint().unwrap_or("-")),
        }
    }

    #[test]
    fn unknown_key_names_line_and_what_was_meant() {
        for (text, words) in [
            (
                "[target]\nexistng = 'keep'",
                "j.toml, line 2: unknown key 'existng' in [target] | did you mean 'existing'?",
            ),
            (
                "\n\n[filter]\n# x\ndatabase-map = {}",
                "j.toml, line 5: unknown key 'database-map' in [filter] | did you mean 'database_map'?",
            ),
            ("onse = true", "j.toml, line 1: unknown key 'onse' at the top of the file | did you mean 'once'?"),
            (
                "[filter]\ndb = [1]",
                "j.toml, line 2: unknown key 'db' in [filter] | in a job file this is 'databases' in [filter]",
            ),
            ("lanes = 2", "j.toml, line 1: unknown key 'lanes' at the top of the file | 'lanes' belongs in [target]"),
            (
                "[source]\nonce = true",
                "j.toml, line 2: unknown key 'once' in [source] | 'once' belongs at the top of the file, before every section",
            ),
            ("[sourse]\nurl = 'redis://h'", "j.toml, line 1: unknown section [sourse] | did you mean 'source'?"),
            (
                "source = 'redis://:pw@h'",
                "j.toml, line 1: 'source' is a section, not a value | write [source] on a line of its own, its keys below it",
            ),
            (
                "[log]\ncolour = 1\nlvl = 2",
                "j.toml, line 2: unknown key 'colour' in [log] | known here: level, format, file",
            ),
            ("[http]\nb = 1\n[log]\na = 1", "j.toml, line 2: unknown key 'b' in [http] | known here: listen"),
        ] {
            assert_eq!(said(text), words);
        }
        assert!(said("[source]\npassword = 'x'").contains("KEYFERRY_SOURCE_PASSWORD"));
    }

    #[test]
    fn bad_value_names_line_and_choices() {
        for (text, words) in [
            ("[target]\n\nexisting = 'kep'", "line 3: 'kep' is none of refuse, replace, keep; did you mean 'keep'?"),
            ("[limits]\nmemory = '256M'", "line 2: '256M' is not a size: write 256MiB (of 1024) or 256MB (of 1000)"),
            ("[limits]\nretry_for = 20", "line 2: '20' has no unit: write 20s, 20m or 20h"),
            ("[filter]\ntypes = ['string',\n 'hsh']", "line 2: 'hsh' is none of"),
            ("[filter]\ndatabase_map = { a = 0 }", "line 2: 'a' is not a database number"),
            ("[filter]\ndatabases = [-1]", "line 2: expected a whole number from 0 to 4294967295, found -1"),
            ("[filter]\ndatabases = 2", "line 2: expected a list, as [1, 2] or [\"a\", \"b\"], found 2"),
            ("[filter]\ndatabase_map = [1]", "line 2: expected a table, as { 2 = 0 }, found a list"),
            ("[filter]\nkeys = 'a'", "line 2: expected a list, as [1, 2] or [\"a\", \"b\"], found the text \"a\""),
            ("[target]\nlanes = 70000", "line 2: expected a whole number from 0 to 65535, found 70000"),
            ("[target]\nlanes = 1.5", "line 2: expected a whole number from 0 to 65535, found 1.5"),
            ("[log]\nfile = true", "line 2: expected text in quotes, found true"),
            ("[source]\nurl = {}", "line 2: expected text in quotes, found a table"),
            ("once = 'yes'", "line 1: expected true or false, found the text \"yes\""),
            ("[source]\nurl = 'redis://:pw@h:x'", "line 2: what follows the host's colon is not a port"),
            ("[source]\naddress_map = 'a'", "line 2: 'a' is not ANNOUNCED=REACHABLE"),
        ] {
            let said = said(text);
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn broken_toml_never_shows_the_password_of_its_line() {
        for text in [
            "[source]\nurl = 'redis://:hunter2@h",
            "[source]\nurl = \"redis://:hunter2\"@h\"",
            "[source]\nurl = redis://:hunter2@h",
            "[source]\nonce = 'redis://:hunter2@h'",
            "once = 'redis://:hunter2@h'",
            "[source]\nurl = \"redis://:hunter2\\q@h\"",
        ] {
            let said = said(text);
            assert!(!said.contains("hunter2"), "{said}");
            assert!(said.contains("line "), "{said}");
        }
    }

    #[test]
    fn shake_file_is_named_as_such() {
        let said = said("[sync_reader]\naddress = 'h:1'\n[redis_writer]\naddress = 'h:2'");
        assert!(said.contains("this is a RedisShake file"), "{said}");
    }

    #[test]
    fn keys_table_names_every_field_of_the_raw_job() {
        for (section, keys) in KEYS {
            for key in *keys {
                let text = match *section {
                    "" => format!("{key} = {{ x = 1 }}"),
                    section => format!("[{section}]\n{key} = {{ x = 1 }}"),
                };
                if let Err(error) = toml::from_str::<Raw>(&text) {
                    assert!(!error.message().contains("unknown field"), "{text}: {error}");
                }
            }
        }
        // And the other way: what serde lists as expected is in the table.
        for (section, keys) in KEYS {
            let text = match *section {
                "" => "zzz = 1".to_owned(),
                section => format!("[{section}]\nzzz = 1"),
            };
            let error = toml::from_str::<Raw>(&text).unwrap_err();
            let expected = error.message().split_once("expected").unwrap().1.to_owned();
            let listed = expected.matches('`').count() / 2;
            let sections = if section.is_empty() { KEYS.len() - 1 } else { 0 };
            assert_eq!(listed, keys.len() + sections, "{section}: {expected}");
        }
    }
}
