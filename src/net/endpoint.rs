//! Where a server is and who we are there: `redis://[[user]:password@]host[:port][,host...][/db]` and its relatives.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use super::secret::Secret;

/// The port of a server whose URL names none.
pub const PORT_DEFAULT: u16 = 6379;
/// The port of a sentinel whose URL names none.
pub const SENTINEL_PORT_DEFAULT: u16 = 26379;
/// How many seeds one URL may name.
pub const HOSTS_MAX: usize = 1024;

/// A host and a port; the host is a name, an IPv4 address or an IPv6 address without its brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A server, a cluster's seeds, or a primary that sentinels know.
///
/// `Display` writes it as a URL with `***` for the password; `Debug` hides the password too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub tls: bool,
    /// At least one; several are seeds of a cluster, or sentinels.
    pub hosts: Vec<HostPort>,
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub database: Option<u32>,
    /// What `?cluster=` says; `None`: the server is asked.
    pub cluster: Option<bool>,
    /// The primary's name, if `hosts` are sentinels.
    pub sentinel: Option<String>,
}

/// Where data comes from or goes to: a server or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Server(Endpoint),
    File(PathBuf),
}

/// Why a URL can't be taken. Quotes the part that is wrong, and never what may be a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("an empty address")]
    Empty,
    #[error("an address without a scheme")]
    NoScheme,
    #[error("unknown scheme '{0}'")]
    Scheme(String),
    #[error("a URL without a host")]
    NoHost,
    #[error("'{0}' is not a host name or address")]
    Host(String),
    #[error("'{0}' is not a port")]
    Port(String),
    #[error("what follows the host's colon is not a port")]
    PortWords,
    #[error("more than {HOSTS_MAX} hosts in one URL")]
    TooManyHosts,
    #[error("'{0}' is not a database number")]
    Database(String),
    #[error("unknown parameter '{0}'")]
    Parameter(String),
    #[error("'{0}' is neither true nor false, as cluster= must be")]
    Cluster(String),
    #[error("a fragment ('#...') after the host")]
    Fragment,
    #[error("a user name that is not UTF-8")]
    User,
    #[error("a sentinel URL without the primary's name")]
    NoPrimary,
}

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Empty | Error::NoScheme | Error::Scheme(_) | Error::NoHost => {
                "write redis://host:port, or rediss:// for TLS (valkey:// and valkeys:// mean the same)"
            }
            Error::Host(_) => {
                "IPv6 addresses stand in brackets; special characters of a password are percent-encoded (@ is %40, / is %2F)"
            }
            Error::Port(_) | Error::PortWords => {
                "a port is a number from 1 to 65535; user:password end with @, before the host"
            }
            Error::TooManyHosts => "a few seeds are enough: the cluster names the others",
            Error::Database(_) => "the path is the number of a database, as in redis://host:6379/2",
            Error::Parameter(_) | Error::Cluster(_) => "the only parameter is ?cluster=true or ?cluster=false",
            Error::Fragment => "is it part of a password? then percent-encode it (# is %23) and end it with @",
            Error::User => "percent-encode the UTF-8 form of the name",
            Error::NoPrimary => "write redis-sentinel://host:26379/NAME, or rediss-sentinel:// for TLS",
        }
    }
}

impl Place {
    /// Tells a file (`file:`, `.rdb`, `.aof`, an appendonly folder) from a server's URL.
    ///
    /// # Errors
    /// As `Endpoint::parse`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Place::File(PathBuf::from(path)));
        }
        let looks_like_file = [".rdb", ".aof"].iter().any(|end| text.ends_with(end))
            || text.trim_end_matches('/').ends_with("appendonlydir");
        if !text.contains("://") && looks_like_file {
            return Ok(Place::File(PathBuf::from(text)));
        }
        Endpoint::parse(text).map(Place::Server)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Server(endpoint) => endpoint.fmt(f),
            Place::File(path) => path.display().fmt(f),
        }
    }
}

impl Endpoint {
    /// Reads a URL: `redis`, `rediss`, `valkey`, `valkeys`, `redis-sentinel`, `rediss-sentinel`, with one host or several.
    ///
    /// User and password are percent-decoded; a `%` that starts no escape stands for itself. The last `@` ends them, so
    /// a raw password may hold anything else, `/`, `#` and `@` included. `user@` names a user whose password comes
    /// from elsewhere.
    ///
    /// # Errors
    /// The first part that is wrong, without quoting user or password.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.trim().is_empty() {
            return Err(Error::Empty);
        }
        let (scheme, rest) = text.split_once("://").ok_or(Error::NoScheme)?;
        let (tls, sentinel) = match scheme.to_ascii_lowercase().as_str() {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis-sentinel" | "valkey-sentinel" => (false, true),
            "rediss-sentinel" | "valkeys-sentinel" => (true, true),
            other if other.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') => {
                return Err(Error::Scheme(scheme.to_owned()));
            }
            _ => return Err(Error::NoScheme),
        };
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let (user, password) = parse_credentials(credentials)?;
        if rest.contains('#') {
            return Err(Error::Fragment);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let port = if sentinel { SENTINEL_PORT_DEFAULT } else { PORT_DEFAULT };
        // The hosts first: in a URL that lacks its host, the rest may be a password.
        let hosts = parse_hosts(hosts, port)?;
        let (database, sentinel) = if sentinel {
            let (primary, database) = path.split_once('/').unwrap_or((path, ""));
            (parse_database(database)?, Some(parse_primary(primary)?))
        } else {
            (parse_database(path)?, None)
        };
        Ok(Endpoint { tls, hosts, user, password, database, cluster: parse_query(query)?, sentinel })
    }

    /// The hosts and ports alone: `h1:7000,h2:7001`.
    pub fn address(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(HostPort::to_string).collect();
        hosts.join(",")
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (&self.sentinel, self.tls) {
            (Some(_), true) => "rediss-sentinel://",
            (Some(_), false) => "redis-sentinel://",
            (None, true) => "rediss://",
            (None, false) => "redis://",
        })?;
        match (&self.user, &self.password) {
            (None, None) => {}
            (user, Some(_)) => write!(f, "{}:***@", user.as_deref().unwrap_or(""))?,
            // Perhaps a password that somebody gave without its colon.
            (Some(_), None) => f.write_str("***@")?,
        }
        f.write_str(&self.address())?;
        if let Some(name) = &self.sentinel {
            write!(f, "/{name}")?;
        }
        if let Some(database) = self.database {
            write!(f, "/{database}")?;
        }
        Ok(())
    }
}

/// Reads `host`, `host:port`, `[v6]` or `[v6]:port`.
///
/// # Errors
/// `Host` or `Port`, with the part that is neither.
pub fn parse_host_port(text: &str, port_default: u16) -> Result<HostPort, Error> {
    // What follows a colon isn't quoted, unless it is an IPv6 address without brackets: it may be a password.
    let bad_host = || {
        let whole = text.starts_with('[') || text.parse::<Ipv6Addr>().is_ok();
        let host = text.split(':').next().unwrap_or(text);
        Error::Host(if whole { text } else { host }.to_owned())
    };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or_else(bad_host)?;
        let host = percent_decode_str(host).decode_utf8().map_err(|_| bad_host())?;
        let (address, zone) = host.split_once('%').unwrap_or((&host, ""));
        let zone_ok = zone.chars().all(|c| c.is_ascii_alphanumeric());
        if address.parse::<Ipv6Addr>().is_err() || !zone_ok {
            return Err(bad_host());
        }
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':').ok_or_else(bad_host)?),
        };
        (host.into_owned(), port)
    } else {
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let ok = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() || !host.chars().all(ok) || port.is_some_and(|p| p.contains(':')) {
            return Err(bad_host());
        }
        (host.to_owned(), port)
    };
    let port = match port {
        None => port_default,
        Some(port) => parse_number(port).filter(|p| *p > 0).ok_or_else(|| bad_port(port))?,
    };
    Ok(HostPort { host, port })
}

fn bad_port(text: &str) -> Error {
    if text.len() <= 6 && text.bytes().all(|b| b.is_ascii_digit()) {
        Error::Port(text.to_owned())
    } else {
        Error::PortWords
    }
}

fn parse_credentials(text: Option<&str>) -> Result<(Option<String>, Option<Secret>), Error> {
    let Some(text) = text else {
        return Ok((None, None));
    };
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let user = percent_decode_str(user).decode_utf8().map_err(|_| Error::User)?;
    let password: Vec<u8> = percent_decode_str(password).collect();
    let user = (!user.is_empty()).then(|| user.into_owned());
    let password = (!password.is_empty()).then(|| Secret::new(password));
    Ok((user, password))
}

fn parse_hosts(text: &str, port_default: u16) -> Result<Vec<HostPort>, Error> {
    if text.is_empty() {
        return Err(Error::NoHost);
    }
    let hosts: Vec<&str> = text.split(',').take(HOSTS_MAX + 1).collect();
    if hosts.len() > HOSTS_MAX {
        return Err(Error::TooManyHosts);
    }
    hosts.into_iter().map(|host| parse_host_port(host, port_default)).collect()
}

fn parse_database(path: &str) -> Result<Option<u32>, Error> {
    if path.is_empty() {
        return Ok(None);
    }
    match parse_number(path) {
        Some(database) => Ok(Some(database)),
        None => Err(Error::Database(path.to_owned())),
    }
}

fn parse_primary(path: &str) -> Result<String, Error> {
    let name = percent_decode_str(path).decode_utf8().map_err(|_| Error::NoPrimary)?;
    if name.is_empty() || name.contains(char::is_control) {
        return Err(Error::NoPrimary);
    }
    Ok(name.into_owned())
}

fn parse_query(query: &str) -> Result<Option<bool>, Error> {
    let mut cluster = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "cluster" {
            return Err(Error::Parameter(name.to_owned()));
        }
        cluster = Some(match value {
            "true" => true,
            "false" => false,
            _ => return Err(Error::Cluster(value.to_owned())),
        });
    }
    Ok(cluster)
}

/// Digits alone: Rust's own parsing would also take a leading `+`.
fn parse_number<N: std::str::FromStr>(text: &str) -> Option<N> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Endpoint {
        Endpoint::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn password(text: &str) -> Vec<u8> {
        parse(text).password.map(|p| p.reveal().to_vec()).unwrap()
    }

    #[test]
    fn parse_plain_forms_give_host_port_and_tls() {
        for (text, tls, shown) in [
            ("redis://h", false, "redis://h:6379"),
            ("REDISS://h:1", true, "rediss://h:1"),
            ("valkey://h/3", false, "redis://h:6379/3"),
            ("valkeys://10.0.0.1/", true, "rediss://10.0.0.1:6379"),
            ("redis://[::1]", false, "redis://[::1]:6379"),
            ("redis://[fe80::1%25eth0]:7/0", false, "redis://[fe80::1%eth0]:7/0"),
            ("redis://a:1,b,[::2]:3", false, "redis://a:1,b:6379,[::2]:3"),
            ("redis-sentinel://a,b:9/my%20m", false, "redis-sentinel://a:26379,b:9/my m"),
            ("rediss-sentinel://a/m/2", true, "rediss-sentinel://a:26379/m/2"),
            ("redis://u:p@h?cluster=false", false, "redis://u:***@h:6379"),
        ] {
            let endpoint = parse(text);
            assert_eq!((endpoint.tls, endpoint.to_string().as_str()), (tls, shown));
        }
    }

    #[test]
    fn parse_credentials_in_every_form() {
        let hard = r#"a$b{}#"\"#;
        assert_eq!(password(r"redis://:a$b%7B%7D%23%22%5C@h"), hard.as_bytes());
        assert_eq!(password(&format!("redis://:{hard}@h")), hard.as_bytes());
        assert_eq!(password("redis://u:a@b/c?d:e@h:1/2"), b"a@b/c?d:e");
        assert_eq!(password("redis://:100%@h"), b"100%");
        assert_eq!(password("redis://:%ff@h"), b"\xff");
        let endpoint = parse("redis://a%40b:p@h");
        assert_eq!(endpoint.user.as_deref(), Some("a@b"));
        let endpoint = parse("redis://u@h");
        assert_eq!((endpoint.user.as_deref(), &endpoint.password), (Some("u"), &None));
        let endpoint = parse("redis://:@h");
        assert_eq!((endpoint.user, endpoint.password), (None, None));
    }

    #[test]
    fn parse_wrong_urls_name_the_wrong_part() {
        let long = format!("redis://{}h", "h,".repeat(HOSTS_MAX));
        for (text, error) in [
            (" ", Error::Empty),
            ("localhost:6379", Error::NoScheme),
            ("http://h", Error::Scheme("http".into())),
            ("redis://", Error::NoHost),
            ("redis://:pw@", Error::NoHost),
            ("redis://h:0", Error::Port("0".into())),
            ("redis://h:65536", Error::Port("65536".into())),
            ("redis://h:+1", Error::PortWords),
            ("redis://alice:hunter2", Error::PortWords),
            ("redis://alice:hun:ter2/x", Error::Host("alice".into())),
            ("redis://::1", Error::Host("::1".into())),
            ("redis://[::1", Error::Host("[::1".into())),
            ("redis://[x]", Error::Host("[x]".into())),
            ("redis://a,,b", Error::Host("".into())),
            ("redis://h h", Error::Host("h h".into())),
            ("redis://h/x", Error::Database("x".into())),
            ("redis://h/4294967296", Error::Database("4294967296".into())),
            ("redis://h?tls=1", Error::Parameter("tls".into())),
            ("redis://h?cluster=yes", Error::Cluster("yes".into())),
            ("redis://h#x", Error::Fragment),
            ("redis://%ff:x@h", Error::User),
            ("redis-sentinel://h", Error::NoPrimary),
            ("redis-sentinel://h//2", Error::NoPrimary),
            ("redis-sentinel://h/m/n", Error::Database("n".into())),
            (&long, Error::TooManyHosts),
        ] {
            assert_eq!(Endpoint::parse(text), Err(error), "{text}");
        }
        assert!(Endpoint::parse(&long.replacen("h,", "", 1)).is_ok());
    }

    #[test]
    fn place_of_paths_is_a_file() {
        for text in ["dump.rdb", "/var/a.aof", "file:x", "file:///x", "/r/appendonlydir/"] {
            assert!(matches!(Place::parse(text), Ok(Place::File(_))), "{text}");
        }
        assert!(matches!(Place::parse("redis://h.rdb"), Ok(Place::Server(_))));
    }

    proptest! {
        #[test]
        fn parse_of_anything_never_panics(text in ".*", tail in ".*") {
            let _ = Place::parse(&text);
            let _ = Place::parse(&format!("redis://{text}"));
            let _ = Place::parse(&format!("rediss://{text}@{tail}"));
        }

        #[test]
        fn error_of_url_without_host_never_holds_the_password(secret in "Zq[!-~&&[^@/?,]]{6,20}") {
            let shown = match Endpoint::parse(&format!("redis://u:{secret}")) {
                Ok(endpoint) => endpoint.to_string(),
                Err(error) => format!("{error} {error:?} {}", error.hint()),
            };
            prop_assert!(!shown.contains(&secret), "{}", shown);
        }

        #[test]
        fn shown_endpoint_or_error_never_holds_the_password(secret in "Zq[!-~]{6,20}", tail in "[a-z]{1,5}[:/?,a-z0-9]{0,6}") {
            for text in [format!("redis://u:{secret}@{tail}"), format!("redis://{secret}@{tail}"), format!("redis://:{secret}@{tail}/x")] {
                let shown = match Endpoint::parse(&text) {
                    Ok(endpoint) => format!("{endpoint} {}", endpoint.address()),
                    Err(error) => format!("{error} {error:?}"),
                };
                prop_assert!(!shown.contains(&secret), "{}", shown);
                if let Ok(Endpoint { password: Some(_), .. }) = Endpoint::parse(&text) {
                    let debug = format!("{:?}", Endpoint::parse(&text));
                    prop_assert!(!debug.contains(&secret), "{}", debug);
                }
            }
        }
    }
}
