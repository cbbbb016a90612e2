//! A job as the rest of the program sees it: whole, checked, with every default filled in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::raw::{AddressMap, Raw, RawFilter, RawLimits};
use super::units::Bytes;
use super::words::{Ack, Existing, LogFormat, LogLevel, OnError, Progress};
use super::{Error, unbuilt};
use crate::filter::ScopeSpec;
use crate::net::Side;
use crate::net::endpoint::{Endpoint, Place};
use crate::net::locate::SentinelLogin;
use crate::net::secret::Secret;
use crate::net::tls::TlsOptions;

pub const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;
/// Less can't hold what is in flight.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
pub const SPOOL_BYTES_DEFAULT: u64 = 20 << 30;
pub const EXPIRY_GRACE_DEFAULT: Duration = Duration::from_secs(3600);
pub const RETRY_FOR_DEFAULT: Duration = Duration::from_secs(300);
pub const LANES_MAX: u16 = 64;
/// The longest name of a job: it stands in every record's key.
pub const JOB_NAME_LEN_MAX: usize = 64;
/// A longer file holds no password.
pub const PASSWORD_FILE_BYTES_MAX: u64 = 64 << 10;

/// Everything a job needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Letters, digits, `.`, `_` and `-`, at most `JOB_NAME_LEN_MAX`.
    pub name: String,
    pub source: Server,
    pub target: Server,
    /// Read a replica in a primary's place where there is one.
    pub prefer_replica: bool,
    pub once: bool,
    pub scope: ScopeSpec,
    pub existing: Existing,
    pub flush_target: bool,
    /// Whether questions are answered with yes.
    pub yes: bool,
    /// Connections per shard and target primary, 1 to `LANES_MAX`; `None` = as measured.
    pub lanes: Option<u16>,
    pub on_error: OnError,
    /// Write the nearest value that the target can hold, and count it.
    pub lossy: bool,
    pub ack: Ack,
    /// How much later expiries are written while following.
    pub expiry_grace: Duration,
    pub allow_eviction: bool,
    /// Ceiling for everything buffered.
    pub memory_bytes: u64,
    /// `None` if it wasn't given and there is no state directory.
    pub spool_dir: Option<PathBuf>,
    pub spool_bytes: u64,
    /// Ceiling of bytes a second to the target.
    pub rate_bytes_s: Option<u64>,
    /// How long an unreachable end is tried; `None` = for ever.
    pub retry_for: Option<Duration>,
    pub restart: bool,
    pub takeover: bool,
    pub unfenced: bool,
    pub progress: Progress,
    pub log: Log,
    /// What the user should know before the job starts; not errors.
    pub notes: Vec<String>,
}

/// One end of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// With its password, wherever that came from.
    pub endpoint: Endpoint,
    /// Of use only where `endpoint.tls`.
    pub tls: TlsOptions,
    /// Of use only where `endpoint.sentinel`.
    pub sentinel: SentinelLogin,
    pub address_map: AddressMap,
}

/// Where the log goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// `None`: not said, so `KEYFERRY_LOG` may say it.
    pub level: Option<LogLevel>,
    pub format: LogFormat,
    /// `None` = standard error.
    pub file: Option<PathBuf>,
}

/// What only the command line says, because it is for one run and not for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunFlags {
    pub yes: bool,
    pub restart: bool,
    pub takeover: bool,
    pub unfenced: bool,
    pub progress: Progress,
}

/// What the environment says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment {
    pub source_password: Option<Secret>,
    pub target_password: Option<Secret>,
    pub source_sentinel_password: Option<Secret>,
    pub target_sentinel_password: Option<Secret>,
    /// The folder for state that programs keep: `$XDG_STATE_HOME` or `~/.local/state`.
    pub state_home: Option<PathBuf>,
}

impl Job {
    /// Checks what was said and fills in what wasn't. Reads password files.
    ///
    /// A password is taken from the first of: the option `--source-password-file`, the URL of the command line, the job file's
    /// `password_file`, the job file's URL, `KEYFERRY_SOURCE_PASSWORD`; the same for the target.
    ///
    /// # Errors
    /// `Usage` for the first thing that is wrong, missing or not built; `Read` for a password file.
    pub fn new(raw: Raw, flags: RunFlags, environment: &Environment) -> Result<Job, Error> {
        unbuilt::refuse(&raw)?;
        let mut notes = Vec::new();
        let once = raw.once.unwrap_or(false);
        let existing = check_existing(raw.target.existing.unwrap_or_default(), once)?;
        let lanes = check_lanes(raw.target.lanes)?;
        let (source, target) = servers(&raw, environment)?;
        let scope = scope(raw.filter, &source.endpoint, &target.endpoint, &mut notes)?;
        let name = match raw.job {
            Some(name) => check_name(name)?,
            None => derive_name(&source.endpoint, &target.endpoint),
        };
        let memory_bytes = check_memory(&raw.limits)?;
        let state_dir = environment.state_home.as_ref();
        let spool_dir = raw.limits.spool_dir;
        let retry_for = raw.limits.retry_for.map_or(RETRY_FOR_DEFAULT, |span| span.0);
        Ok(Job {
            spool_dir: spool_dir.or_else(|| state_dir.map(|dir| dir.join("keyferry").join(&name))),
            name,
            source,
            target,
            prefer_replica: raw.source.prefer_replica.unwrap_or(false),
            once,
            scope,
            existing,
            flush_target: raw.target.flush.unwrap_or(false),
            yes: flags.yes,
            lanes,
            on_error: raw.on_error.unwrap_or_default(),
            lossy: raw.target.lossy.unwrap_or(false),
            ack: raw.source.ack.unwrap_or_default(),
            expiry_grace: raw.target.expiry_grace.map_or(EXPIRY_GRACE_DEFAULT, |span| span.0),
            allow_eviction: raw.target.allow_eviction.unwrap_or(false),
            memory_bytes,
            spool_bytes: raw.limits.spool.map_or(SPOOL_BYTES_DEFAULT, |bytes| bytes.0),
            rate_bytes_s: raw.limits.rate.map(|rate| rate.0),
            retry_for: (!retry_for.is_zero()).then_some(retry_for),
            restart: flags.restart,
            takeover: flags.takeover,
            unfenced: flags.unfenced,
            progress: flags.progress,
            log: Log { level: raw.log.level, format: raw.log.format.unwrap_or_default(), file: raw.log.file },
            notes,
        })
    }
}

/// One end's share of a `Raw`, the same for both.
struct End<'a> {
    side: Side,
    url: &'a Option<Place>,
    password_file: &'a Option<PathBuf>,
    password: &'a Option<Secret>,
    sentinel_user: &'a Option<String>,
    sentinel_password_file: &'a Option<PathBuf>,
    sentinel_password: &'a Option<Secret>,
    tls: TlsOptions,
    address_map: &'a Option<AddressMap>,
}

fn servers(raw: &Raw, environment: &Environment) -> Result<(Server, Server), Error> {
    let (s, t) = (&raw.source, &raw.target);
    if s.url.is_none() && t.url.is_none() {
        return Err(Error::usage(
            "neither a source nor a target is given",
            "keyferry sync redis://SOURCE:6379 redis://TARGET:6379, or keyferry sync JOB.toml",
        ));
    }
    let source = server(End {
        side: Side::Source,
        url: &s.url,
        password_file: &s.password_file,
        password: &environment.source_password,
        sentinel_user: &s.sentinel_user,
        sentinel_password_file: &s.sentinel_password_file,
        sentinel_password: &environment.source_sentinel_password,
        tls: TlsOptions {
            cacert: s.cacert.clone(),
            cert: s.cert.clone(),
            key: s.key.clone(),
            sni: s.sni.clone(),
            insecure: s.insecure.unwrap_or(false),
        },
        address_map: &s.address_map,
    })?;
    let target = server(End {
        side: Side::Target,
        url: &t.url,
        password_file: &t.password_file,
        password: &environment.target_password,
        sentinel_user: &t.sentinel_user,
        sentinel_password_file: &t.sentinel_password_file,
        sentinel_password: &environment.target_sentinel_password,
        tls: TlsOptions {
            cacert: t.cacert.clone(),
            cert: t.cert.clone(),
            key: t.key.clone(),
            sni: t.sni.clone(),
            insecure: t.insecure.unwrap_or(false),
        },
        address_map: &t.address_map,
    })?;
    let same = |host: &&crate::net::endpoint::HostPort| {
        let hosts = &target.endpoint.hosts;
        let is = |h: &crate::net::endpoint::HostPort| h.port == host.port && h.host.eq_ignore_ascii_case(&host.host);
        hosts.iter().any(is)
    };
    // Sentinels may watch both, under two names.
    let one_name = source.endpoint.sentinel == target.endpoint.sentinel;
    if let Some(host) = source.endpoint.hosts.iter().find(same).filter(|_| one_name) {
        return Err(Error::usage(
            format!("source and target are the same server: {host}"),
            "copying between databases of one server is not what keyferry does",
        ));
    }
    Ok((source, target))
}

fn server(end: End<'_>) -> Result<Server, Error> {
    let side = end.side;
    let mut endpoint = match end.url {
        Some(Place::Server(endpoint)) => endpoint.clone(),
        Some(Place::File(_)) | None => {
            return Err(Error::usage(
                format!("no {side} is given"),
                format!("add --{side} redis://host:port, or url in [{side}] of the job file"),
            ));
        }
    };
    if let Some(path) = end.password_file {
        endpoint.password = Some(read_password(side, path)?);
    } else if endpoint.password.is_none() {
        endpoint.password = end.password.clone();
    }
    let sentinel = sentinel_login(&end, &endpoint)?;
    let variable = format!("KEYFERRY_{}_PASSWORD", side.to_string().to_ascii_uppercase());
    if endpoint.user.is_some() && endpoint.password.is_none() {
        return Err(Error::usage(
            format!("the {side}'s URL names a user, but there is no password"),
            format!("write user:password@host (a password alone is :password@host), or set {variable}"),
        ));
    }
    if !endpoint.tls && !end.tls.is_default() {
        return Err(Error::usage(
            format!("TLS options are given for the {side}, but its URL is not rediss://"),
            format!("write rediss:// (rediss-sentinel://) for TLS, or leave the --{side}- options of TLS out"),
        ));
    }
    if end.tls.cert.is_some() != end.tls.key.is_some() {
        return Err(Error::usage(
            format!("--{side}-cert and --{side}-key belong together"),
            "give both, each the path of a PEM file",
        ));
    }
    Ok(Server { endpoint, tls: end.tls, sentinel, address_map: end.address_map.clone().unwrap_or_default() })
}

/// Who we are for an end's sentinels. The environment's password may be there for other jobs.
fn sentinel_login(end: &End<'_>, endpoint: &Endpoint) -> Result<SentinelLogin, Error> {
    let side = end.side;
    if endpoint.sentinel.is_none() {
        if end.sentinel_user.is_some() || end.sentinel_password_file.is_some() {
            return Err(Error::usage(
                format!("a login for sentinels is given for the {side}, but its URL is not redis-sentinel://"),
                format!("write redis-sentinel://host:26379/NAME, or leave the --{side}-sentinel- options out"),
            ));
        }
        return Ok(SentinelLogin::default());
    }
    let password = match end.sentinel_password_file {
        Some(path) => Some(read_password(side, path)?),
        None => end.sentinel_password.clone(),
    };
    if end.sentinel_user.is_some() && password.is_none() {
        let variable = format!("KEYFERRY_{}_SENTINEL_PASSWORD", side.to_string().to_ascii_uppercase());
        return Err(Error::usage(
            format!("--{side}-sentinel-user names a user, but there is no password"),
            format!("give --{side}-sentinel-password-file, or set {variable}"),
        ));
    }
    Ok(SentinelLogin { user: end.sentinel_user.clone(), password })
}

/// The first line end of a password file isn't part of the password; everything else is.
fn read_password(side: Side, path: &Path) -> Result<Secret, Error> {
    let read = std::fs::metadata(path).and_then(|meta| {
        if meta.len() > PASSWORD_FILE_BYTES_MAX {
            return Err(std::io::Error::other("too long to be a password"));
        }
        std::fs::read(path)
    });
    let bytes = read.map_err(|error| Error::Read { path: path.to_owned(), error })?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(Error::usage(
            format!("the {side}'s password file {} is empty", path.display()),
            "write the password into it, and nothing else",
        ));
    }
    Ok(Secret::new(line))
}

fn check_existing(existing: Existing, once: bool) -> Result<Existing, Error> {
    if existing == Existing::Keep && !once {
        return Err(Error::usage("--existing keep works only with --once", "add --once, or choose --existing replace"));
    }
    Ok(existing)
}

fn check_lanes(lanes: Option<u16>) -> Result<Option<u16>, Error> {
    match lanes {
        Some(lanes) if lanes == 0 || lanes > LANES_MAX => Err(Error::usage(
            format!("--lanes {lanes} is out of range: 1 to {LANES_MAX}"),
            "leave it out to have it measured",
        )),
        lanes => Ok(lanes),
    }
}

fn check_memory(limits: &RawLimits) -> Result<u64, Error> {
    match limits.memory {
        Some(Bytes(bytes)) if bytes < MEMORY_BYTES_MIN => Err(Error::usage(
            format!("--memory of {bytes} bytes is too little"),
            format!("{} MiB is the least", MEMORY_BYTES_MIN >> 20),
        )),
        Some(Bytes(bytes)) => Ok(bytes),
        None => Ok(MEMORY_BYTES_DEFAULT),
    }
}

fn check_name(name: String) -> Result<String, Error> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > JOB_NAME_LEN_MAX || !name.bytes().all(ok) {
        return Err(Error::usage(
            format!("'{}' can't be a job's name", name.escape_debug()),
            format!("1 to {JOB_NAME_LEN_MAX} letters, digits, '.', '_' and '-'"),
        ));
    }
    Ok(name)
}

/// A name that the same two ends always get: twelve hexadecimal digits of FNV-1a over their addresses.
///
/// Stable for ever: the job's records in the target are found by it. User, password, database and scheme don't count.
fn derive_name(source: &Endpoint, target: &Endpoint) -> String {
    let sorted = |endpoint: &Endpoint| {
        let mut hosts: Vec<String> = endpoint.hosts.iter().map(|host| host.to_string().to_ascii_lowercase()).collect();
        hosts.sort();
        let name = endpoint.sentinel.as_deref().unwrap_or("");
        format!("{}/{name}", hosts.join(","))
    };
    let text = format!("{} {}", sorted(source), sorted(target));
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{:012x}", (hash ^ (hash >> 48)) & 0xffff_ffff_ffff)
}

fn scope(raw: RawFilter, source: &Endpoint, target: &Endpoint, notes: &mut Vec<String>) -> Result<ScopeSpec, Error> {
    let databases = source_databases(raw.databases, source.database)?;
    let mut map = raw.database_map.unwrap_or_default();
    if let Some(database) = target.database {
        map_all_to(database, databases.as_deref(), &mut map)?;
    }
    let in_scope = |db: &u32| databases.as_ref().is_none_or(|list| list.contains(db));
    if let Some(from) = map.keys().find(|from| !in_scope(from)) {
        return Err(Error::usage(
            format!("--db-map maps database {from}, which is not among those of --db"),
            format!("add {from} to --db, or take it out of --db-map"),
        ));
    }
    note_merges(databases.as_deref(), &map, notes);
    check_regexes("--key-regex", raw.key_regexes.as_deref())?;
    check_regexes("--not-key-regex", raw.not_key_regexes.as_deref())?;
    if raw.types.as_ref().is_some_and(Vec::is_empty) {
        return Err(empty("--type"));
    }
    Ok(ScopeSpec {
        databases,
        database_map: map,
        keys: raw.keys.unwrap_or_default(),
        not_keys: raw.not_keys.unwrap_or_default(),
        key_regexes: raw.key_regexes.unwrap_or_default(),
        not_key_regexes: raw.not_key_regexes.unwrap_or_default(),
        types: raw.types,
        not_commands: check_commands(raw.not_commands.unwrap_or_default())?,
    })
}

/// `--db`, or what the source's URL says; both only if they agree.
fn source_databases(list: Option<Vec<u32>>, url: Option<u32>) -> Result<Option<Vec<u32>>, Error> {
    let list = list.map(|mut list| {
        list.sort_unstable();
        list.dedup();
        list
    });
    match (list, url) {
        (Some(list), _) if list.is_empty() => Err(empty("--db")),
        (Some(list), Some(url)) if list != [url] => Err(Error::usage(
            format!("the source's URL names database {url}, --db others"),
            "name the databases in one place",
        )),
        (Some(list), _) => Ok(Some(list)),
        (None, url) => Ok(url.map(|url| vec![url])),
    }
}

/// The target's URL names a database: fine where one source database is in scope.
fn map_all_to(
    database: u32,
    databases: Option<&[u32]>,
    map: &mut std::collections::BTreeMap<u32, u32>,
) -> Result<(), Error> {
    let &[from] = databases.unwrap_or_default() else {
        return Err(Error::usage(
            format!("the target's URL names database {database}, but the job copies several"),
            "leave it out, or say which goes where: --db 2 --db-map 2:0",
        ));
    };
    match map.insert(from, database) {
        Some(other) if other != database => Err(Error::usage(
            format!("database {from} goes to {other} by --db-map, to {database} by the target's URL"),
            "name the target's database in one place",
        )),
        _ => Ok(()),
    }
}

/// Databases that become one on the target: allowed, but seldom meant, so it is said.
fn note_merges(databases: Option<&[u32]>, map: &std::collections::BTreeMap<u32, u32>, notes: &mut Vec<String>) {
    let in_scope = |db: u32| databases.is_none_or(|list| list.contains(&db));
    for (from, to) in map {
        let unmapped = from != to && in_scope(*to) && !map.contains_key(to);
        let twin = map.iter().find(|(other, t)| *other < from && *t == to);
        let other = twin.map(|(other, _)| *other).or(unmapped.then_some(*to));
        if let Some(other) = other {
            notes.push(format!(
                "databases {from} and {other} both go to the target's database {to}: of keys with one name the last written stays"
            ));
        }
    }
}

fn check_regexes(option: &str, regexes: Option<&[String]>) -> Result<(), Error> {
    for regex in regexes.unwrap_or_default() {
        if let Err(error) = regex::bytes::Regex::new(regex) {
            let error = error.to_string();
            let why = error.lines().last().unwrap_or_default();
            let why = why.trim_start_matches("error: ");
            return Err(Error::usage(
                format!("{option} '{regex}' is not a regular expression: {why}"),
                "the syntax is that of the Rust crate regex; quote it for the shell",
            ));
        }
    }
    Ok(())
}

/// Names of commands in lower case; `xgroup create` may be written with a space.
fn check_commands(names: Vec<String>) -> Result<Vec<String>, Error> {
    let ok = |part: &str| {
        let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        !part.is_empty() && part.bytes().all(letter)
    };
    let mut checked = Vec::with_capacity(names.len());
    for name in names {
        let plain = name.trim().to_ascii_lowercase().replace(' ', "|");
        if plain.split('|').count() > 2 || !plain.split('|').all(ok) {
            return Err(Error::usage(
                format!("--not-command '{}' is not a command", name.escape_debug()),
                "write flushall, or a subcommand as xgroup|create",
            ));
        }
        checked.push(plain);
    }
    checked.sort();
    checked.dedup();
    Ok(checked)
}

fn empty(option: &str) -> Error {
    Error::usage(format!("{option} names nothing, so nothing would be copied"), "leave it out for all")
}

#[cfg(test)]
#[path = "valid_tests.rs"]
mod tests;
