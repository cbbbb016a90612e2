//! What was said, as it was said: one layer of a job, from options or from a job file.
//!
//! Every field is optional; `Raw::over` lays one layer over another. The field names are the job file's keys.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};

use super::units::{Bytes, Rate, Span};
use super::words::{Ack, CopyBy, Existing, LogFormat, LogLevel, OnError, Word};
use crate::filter::TypeName;
use crate::net::endpoint::{HostPort, Place, parse_host_port};

/// One layer of a job.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    pub job: Option<String>,
    pub once: Option<bool>,
    #[serde(deserialize_with = "word")]
    pub on_error: Option<OnError>,
    pub source: RawSource,
    pub target: RawTarget,
    pub filter: RawFilter,
    pub limits: RawLimits,
    pub http: RawHttp,
    pub log: RawLog,
}

/// What both ends have.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawSource {
    #[serde(deserialize_with = "place")]
    pub url: Option<Place>,
    pub password_file: Option<PathBuf>,
    pub sentinel_user: Option<String>,
    pub sentinel_password_file: Option<PathBuf>,
    pub cacert: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub sni: Option<String>,
    pub insecure: Option<bool>,
    #[serde(deserialize_with = "address_map")]
    pub address_map: Option<AddressMap>,
    #[serde(deserialize_with = "word")]
    pub copy: Option<CopyBy>,
    pub prefer_replica: Option<bool>,
    #[serde(deserialize_with = "word")]
    pub ack: Option<Ack>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawTarget {
    #[serde(deserialize_with = "place")]
    pub url: Option<Place>,
    pub password_file: Option<PathBuf>,
    pub sentinel_user: Option<String>,
    pub sentinel_password_file: Option<PathBuf>,
    pub cacert: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub sni: Option<String>,
    pub insecure: Option<bool>,
    #[serde(deserialize_with = "address_map")]
    pub address_map: Option<AddressMap>,
    #[serde(deserialize_with = "word")]
    pub existing: Option<Existing>,
    pub flush: Option<bool>,
    pub lanes: Option<u16>,
    #[serde(deserialize_with = "text")]
    pub expiry_grace: Option<Span>,
    pub guard_memory: Option<String>,
    pub allow_eviction: Option<bool>,
    pub lossy: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawFilter {
    pub databases: Option<Vec<u32>>,
    #[serde(deserialize_with = "database_map")]
    pub database_map: Option<BTreeMap<u32, u32>>,
    #[serde(deserialize_with = "globs")]
    pub keys: Option<Vec<Vec<u8>>>,
    #[serde(deserialize_with = "globs")]
    pub not_keys: Option<Vec<Vec<u8>>>,
    pub key_regexes: Option<Vec<String>>,
    pub not_key_regexes: Option<Vec<String>>,
    #[serde(deserialize_with = "type_names")]
    pub types: Option<Vec<TypeName>>,
    pub not_commands: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawLimits {
    #[serde(deserialize_with = "text")]
    pub memory: Option<Bytes>,
    pub spool_dir: Option<PathBuf>,
    #[serde(deserialize_with = "text")]
    pub spool: Option<Bytes>,
    #[serde(deserialize_with = "text")]
    pub rate: Option<Rate>,
    #[serde(deserialize_with = "text")]
    pub retry_for: Option<Span>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawHttp {
    pub listen: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawLog {
    #[serde(deserialize_with = "word")]
    pub level: Option<LogLevel>,
    #[serde(deserialize_with = "word")]
    pub format: Option<LogFormat>,
    pub file: Option<PathBuf>,
}

/// The keys of each section, for messages and hints; the first section is the file's top.
pub const KEYS: &[(&str, &[&str])] = &[
    ("", &["job", "once", "on_error"]),
    (
        "source",
        &[
            "url",
            "password_file",
            "sentinel_user",
            "sentinel_password_file",
            "cacert",
            "cert",
            "key",
            "sni",
            "insecure",
            "address_map",
            "copy",
            "prefer_replica",
            "ack",
        ],
    ),
    (
        "target",
        &[
            "url",
            "password_file",
            "sentinel_user",
            "sentinel_password_file",
            "cacert",
            "cert",
            "key",
            "sni",
            "insecure",
            "address_map",
            "existing",
            "flush",
            "lanes",
            "expiry_grace",
            "guard_memory",
            "allow_eviction",
            "lossy",
        ],
    ),
    (
        "filter",
        &["databases", "database_map", "keys", "not_keys", "key_regexes", "not_key_regexes", "types", "not_commands"],
    ),
    ("limits", &["memory", "spool_dir", "spool", "rate", "retry_for"]),
    ("http", &["listen"]),
    ("log", &["level", "format", "file"]),
];

/// Makes `top`'s fields win over `below`'s.
macro_rules! lay {
    ($type:ident { $($field:ident),+ }) => {
        impl $type {
            fn over(self, below: $type) -> $type {
                $type { $($field: self.$field.or(below.$field)),+ }
            }
        }
    };
}

lay!(RawSource {
    url,
    password_file,
    sentinel_user,
    sentinel_password_file,
    cacert,
    cert,
    key,
    sni,
    insecure,
    address_map,
    copy,
    prefer_replica,
    ack
});
lay!(RawTarget {
    url,
    password_file,
    sentinel_user,
    sentinel_password_file,
    cacert,
    cert,
    key,
    sni,
    insecure,
    address_map,
    existing,
    flush,
    lanes,
    expiry_grace,
    guard_memory,
    allow_eviction,
    lossy
});
lay!(RawFilter { databases, database_map, keys, not_keys, key_regexes, not_key_regexes, types, not_commands });
lay!(RawLimits { memory, spool_dir, spool, rate, retry_for });
lay!(RawHttp { listen });
lay!(RawLog { level, format, file });

impl Raw {
    /// This layer over another: what is said here wins, list by list and value by value.
    ///
    /// A password in this layer's URL also beats the other's `password_file`.
    pub fn over(self, mut below: Raw) -> Raw {
        if has_password(&self.source.url) {
            below.source.password_file = None;
        }
        if has_password(&self.target.url) {
            below.target.password_file = None;
        }
        Raw {
            job: self.job.or(below.job),
            once: self.once.or(below.once),
            on_error: self.on_error.or(below.on_error),
            source: self.source.over(below.source),
            target: self.target.over(below.target),
            filter: self.filter.over(below.filter),
            limits: self.limits.over(below.limits),
            http: self.http.over(below.http),
            log: self.log.over(below.log),
        }
    }
}

fn has_password(url: &Option<Place>) -> bool {
    matches!(url, Some(Place::Server(endpoint)) if endpoint.password.is_some())
}

/// Announced address to reachable one, as servers behind NAT need it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressMap(pub BTreeMap<HostPort, HostPort>);

impl AddressMap {
    /// Reads `A=B,C=D`.
    ///
    /// # Errors
    /// Words that name the pair that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pairs = text
            .split(',')
            .map(|pair| pair.split_once('=').ok_or_else(|| format!("'{pair}' is not ANNOUNCED=REACHABLE")));
        Self::from_pairs(pairs)
    }

    fn from_pairs<'a>(pairs: impl Iterator<Item = Result<(&'a str, &'a str), String>>) -> Result<Self, String> {
        let address =
            |text: &str| parse_host_port(text.trim(), crate::net::endpoint::PORT_DEFAULT).map_err(|e| e.to_string());
        let mut map = BTreeMap::new();
        for pair in pairs {
            let (announced, reachable) = pair?;
            if map.insert(address(announced)?, address(reachable)?).is_some() {
                return Err(format!("'{announced}' is mapped twice"));
            }
        }
        Ok(AddressMap(map))
    }
}

/// Reads `2:0,5:1`: source database to target database.
///
/// # Errors
/// Words that name the pair that is wrong.
pub fn parse_database_map(text: &str) -> Result<BTreeMap<u32, u32>, String> {
    let mut map = BTreeMap::new();
    for pair in text.split(',') {
        let numbers = pair.split_once(':').and_then(|(from, to)| Some((parse_database(from)?, parse_database(to)?)));
        let (from, to) =
            numbers.ok_or_else(|| format!("'{pair}' is not SOURCE:TARGET, two database numbers (2:0,5:1)"))?;
        if map.insert(from, to).is_some() {
            return Err(format!("database {from} is mapped twice"));
        }
    }
    Ok(map)
}

/// Reads `2,5`.
///
/// # Errors
/// Words that name the part that is no number.
pub fn parse_databases(text: &str) -> Result<Vec<u32>, String> {
    text.split(',')
        .map(|part| parse_database(part).ok_or_else(|| format!("'{part}' is not a database number")))
        .collect()
}

fn parse_database(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

fn text<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: std::str::FromStr<Err: fmt::Display>,
{
    visit(deserializer, |text| text.parse().map_err(|e: T::Err| e.to_string()))
}

fn word<'de, D: Deserializer<'de>, W: Word>(deserializer: D) -> Result<Option<W>, D::Error> {
    visit(deserializer, |text| W::parse(text).map_err(|e| e.to_string()))
}

fn place<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Place>, D::Error> {
    visit(deserializer, |text| Place::parse(text).map_err(|e| format!("{e}: {}", e.hint())))
}

fn globs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Vec<u8>>>, D::Error> {
    let globs = Vec::<String>::deserialize(deserializer)?;
    Ok(Some(globs.into_iter().map(String::into_bytes).collect()))
}

fn type_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<TypeName>>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let names = names.iter().map(|name| TypeName::parse(name));
    names.collect::<Result<_, _>>().map(Some).map_err(D::Error::custom)
}

fn database_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeMap<u32, u32>>, D::Error> {
    let map = BTreeMap::<String, u32>::deserialize(deserializer)?;
    let pairs = map.into_iter().map(|(from, to)| {
        parse_database(&from)
            .map(|from| (from, to))
            .ok_or_else(|| D::Error::custom(format!("'{from}' is not a database number")))
    });
    pairs.collect::<Result<_, _>>().map(Some)
}

fn address_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AddressMap>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected \"A=B,C=D\" or a table of addresses")]
    enum Form {
        Text(String),
        Table(BTreeMap<String, String>),
    }
    let map = match Form::deserialize(deserializer)? {
        Form::Text(text) => AddressMap::parse(&text),
        Form::Table(table) => AddressMap::from_pairs(table.iter().map(|(a, b)| Ok((a.as_str(), b.as_str())))),
    };
    map.map(Some).map_err(D::Error::custom)
}

/// Reads a string, or a number as if it were one (`memory = 1024`), with `parse`.
fn visit<'de, D, T, F>(deserializer: D, parse: F) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    F: Fn(&str) -> Result<T, String>,
{
    struct Text<T, F>(F, PhantomData<T>);

    impl<T, F: Fn(&str) -> Result<T, String>> Visitor<'_> for Text<T, F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            (self.0)(text).map_err(E::custom)
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
    }

    deserializer.deserialize_any(Text(parse, PhantomData)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_map_and_list_of_wrong_words_name_the_part() {
        assert_eq!(parse_database_map("2:0,5:1"), Ok([(2, 0), (5, 1)].into()));
        assert_eq!(parse_databases("1, 0"), Ok(vec![1, 0]));
        let error = parse_database_map("2:0,5").unwrap_err();
        assert!(error.starts_with("'5' is not SOURCE:TARGET"), "{error}");
        let error = parse_database_map("2:0,2:1").unwrap_err();
        assert_eq!(error, "database 2 is mapped twice");
        let error = parse_databases("2,x").unwrap_err();
        assert_eq!(error, "'x' is not a database number");
    }

    #[test]
    fn address_map_reads_pairs_and_refuses_others() {
        let map = AddressMap::parse("10.0.0.1:7000=[::1]:17000,a=b:1").unwrap();
        let shown: Vec<String> = map.0.iter().map(|(a, b)| format!("{a}={b}")).collect();
        assert_eq!(shown, ["10.0.0.1:7000=[::1]:17000", "a:6379=b:1"]);
        for text in ["", "a", "a=b,a=c", "a=b:x"] {
            assert!(AddressMap::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn layer_over_another_wins_value_by_value() {
        let read = |text: &str| toml::from_str::<Raw>(text).unwrap();
        let options = read("once = true\n[filter]\nkeys = ['a']\n[source]\nurl = 'redis://:p@h'");
        let file = read(
            "job = 'j'\nonce = false\n[filter]\nkeys = ['b', 'c']\nnot_keys = ['d']\n[source]\nurl = 'redis://x'\npassword_file = 'f'",
        );
        let both = options.over(file);
        assert_eq!((both.job.as_deref(), both.once), (Some("j"), Some(true)));
        assert_eq!(both.filter.keys, Some(vec![b"a".to_vec()]));
        assert_eq!(both.filter.not_keys, Some(vec![b"d".to_vec()]));
        assert_eq!(both.source.password_file, None);
    }
}
