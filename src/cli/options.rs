//! The options of `sync`, which later commands share: defined once, made into a layer of a job.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::config::raw::{
    AddressMap, Raw, RawFilter, RawHttp, RawLimits, RawLog, RawSource, RawTarget, parse_database_map,
};
use crate::config::units::{Bytes, Rate, Span};
use crate::config::valid::{Environment, Job, Log, RunFlags};
use crate::config::words::{Ack, CopyBy, Existing, LogFormat, LogLevel, OnError, Progress, Word};
use crate::config::{Error, file};
use crate::filter::TypeName;
use crate::net::Side;
use crate::net::endpoint::Place;
use crate::net::secret::Secret;

/// Everything that says what a job is.
#[derive(Debug, clap::Args)]
#[command(hide_possible_values = true)]
pub struct JobOptions {
    /// A job file (*.toml), or two URLs: redis://[[user]:password@]host[:port][/db], rediss:// for TLS
    #[arg(value_name = "JOB.toml | SOURCE TARGET", num_args = 0..=3)]
    places: Vec<String>,
    #[command(flatten)]
    ends: Ends,
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    showing: Showing,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Ends (each also with --target-...)")]
struct Ends {
    /// Where to read; same as the first URL [no default]
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// File with the password [default: the URL's, else KEYFERRY_SOURCE_PASSWORD]
    #[arg(long, value_name = "FILE")]
    source_password_file: Option<PathBuf>,
    /// User at sentinels; password: KEYFERRY_SOURCE_SENTINEL_PASSWORD or
    /// --source-sentinel-password-file [default: none]
    #[arg(long, value_name = "USER")]
    source_sentinel_user: Option<String>,
    /// File with the password for sentinels [default: KEYFERRY_SOURCE_SENTINEL_PASSWORD]
    // Named above: so long an option would push all help to lines of its own.
    #[arg(long, value_name = "FILE", hide = true)]
    source_sentinel_password_file: Option<PathBuf>,
    /// PEM file of the CAs to trust [default: the system's store]
    #[arg(long, value_name = "FILE")]
    source_cacert: Option<PathBuf>,
    /// PEM file of the client certificate [default: none]
    #[arg(long, value_name = "FILE")]
    source_cert: Option<PathBuf>,
    /// PEM file of its private key [default: none]
    #[arg(long, value_name = "FILE")]
    source_key: Option<PathBuf>,
    /// Name that the server's certificate must have [default: the URL's host]
    #[arg(long, value_name = "NAME")]
    source_sni: Option<String>,
    /// Take any certificate of the server [default: off]
    #[arg(long)]
    source_insecure: bool,
    /// Announced address to reachable one, behind NAT: A=B,C=D [default: none]
    #[arg(long, value_name = "MAP", value_parser = AddressMap::parse)]
    source_address_map: Option<AddressMap>,
    /// Where to write; same as the second URL [no default]
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    #[arg(long, value_name = "FILE", hide = true)]
    target_password_file: Option<PathBuf>,
    #[arg(long, value_name = "USER", hide = true)]
    target_sentinel_user: Option<String>,
    #[arg(long, value_name = "FILE", hide = true)]
    target_sentinel_password_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", hide = true)]
    target_cacert: Option<PathBuf>,
    #[arg(long, value_name = "FILE", hide = true)]
    target_cert: Option<PathBuf>,
    #[arg(long, value_name = "FILE", hide = true)]
    target_key: Option<PathBuf>,
    #[arg(long, value_name = "NAME", hide = true)]
    target_sni: Option<String>,
    #[arg(long, hide = true)]
    target_insecure: bool,
    #[arg(long, value_name = "MAP", hide = true, value_parser = AddressMap::parse)]
    target_address_map: Option<AddressMap>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What to copy")]
struct What {
    /// Source databases: 2,5 [default: all]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    db: Vec<u32>,
    /// Target database of a source database: 2:0,5:1 [default: the same]
    #[arg(long, value_name = "N:M,...", value_parser = parse_database_map)]
    db_map: Option<std::collections::BTreeMap<u32, u32>>,
    /// Keys that match, as in KEYS; repeatable, any may match [default: all]
    #[arg(long, value_name = "GLOB")]
    key: Vec<OsString>,
    /// But not these; repeatable [default: none]
    #[arg(long, value_name = "GLOB")]
    not_key: Vec<OsString>,
    /// Keys whose bytes match; repeatable [default: all]
    #[arg(long, value_name = "REGEX")]
    key_regex: Vec<String>,
    /// But not these; repeatable [default: none]
    #[arg(long, value_name = "REGEX")]
    not_key_regex: Vec<String>,
    /// Value types, in the copy: string,hash [default: all]
    #[arg(long = "type", value_name = "TYPE,...", value_delimiter = ',', value_parser = word::<TypeName>())]
    types: Vec<TypeName>,
    /// Commands left out of the stream: flushall,xgroup|create [default: none]
    #[arg(long, value_name = "COMMAND,...", value_delimiter = ',')]
    not_command: Vec<String>,
    /// End when caught up with the copy [default: off, follow until stopped]
    #[arg(long)]
    once: bool,
    /// How the copy is taken: snapshot, or scan (not yet) [default: snapshot]
    #[arg(long, value_name = "HOW", value_parser = word::<CopyBy>())]
    copy: Option<CopyBy>,
    /// Read from a replica where there is one (not yet) [default: off]
    #[arg(long)]
    prefer_replica: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How to write")]
struct Writing {
    /// Keys the target already has: refuse, replace, keep (with --once) [default: refuse]
    #[arg(long, value_name = "WHAT", value_parser = word::<Existing>())]
    existing: Option<Existing>,
    /// Empty the target first; asks [default: off]
    #[arg(long)]
    flush_target: bool,
    /// Answer yes to questions [default: off]
    #[arg(long)]
    yes: bool,
    /// Connections to the target, 1 to 64; 1 keeps all in order [default: measured]
    #[arg(long, value_name = "N")]
    lanes: Option<u16>,
    /// A command the target refuses for good: stop, skip or recopy [default: stop]
    #[arg(long, value_name = "WHAT", value_parser = word::<OnError>())]
    on_error: Option<OnError>,
    /// How much later expiries are written, until the end; 0 = exact [default: 1h]
    #[arg(long, value_name = "TIME")]
    expiry_grace: Option<Span>,
    /// Pause before the target's memory is so full: 90% (not yet) [default: off]
    #[arg(long, value_name = "PERCENT")]
    guard_memory: Option<String>,
    /// Accept a target with an allkeys-* policy [default: off]
    #[arg(long)]
    allow_eviction: bool,
    /// Write the nearest value that the target can hold, and count it [default: off]
    #[arg(long)]
    lossy: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How to run")]
struct Running {
    /// Name of the job and its records [default: derived from both addresses]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Ceiling for everything buffered [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Ceiling on disk, when memory is used up [default: 20GiB]
    #[arg(long, value_name = "SIZE")]
    spool: Option<Bytes>,
    /// Folder for it [default: the job's, under the state directory]
    #[arg(long, value_name = "DIR")]
    spool_dir: Option<PathBuf>,
    /// Bytes a second to the target: 50MiB [default: no limit]
    #[arg(long, value_name = "SIZE")]
    rate: Option<Rate>,
    /// How long an unreachable end is tried; 0 = for ever [default: 5m]
    #[arg(long, value_name = "TIME")]
    retry_for: Option<Span>,
    /// Offset the source is told: applied or received [default: applied]
    #[arg(long, value_name = "WHICH", value_parser = word::<Ack>())]
    ack: Option<Ack>,
    /// Forget the job's checkpoint and copy again [default: off]
    #[arg(long)]
    restart: bool,
    /// Take the job from an owner that still holds it [default: off]
    #[arg(long)]
    takeover: bool,
    /// Go on where CLIENT LIST and KILL are refused [default: off]
    #[arg(long)]
    unfenced: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What to show")]
struct Showing {
    /// auto, bar, log (a line every 5 s) or none [default: auto, a bar on a terminal]
    #[arg(long, value_name = "HOW", value_parser = word::<Progress>())]
    progress: Option<Progress>,
    /// off, error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = word::<LogLevel>())]
    log_level: Option<LogLevel>,
    /// text or json [default: text]
    #[arg(long, value_name = "FORM", value_parser = word::<LogFormat>())]
    log_format: Option<LogFormat>,
    /// File to append the log to [default: standard error]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Serve status and metrics at an address (not yet) [default: off]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
}

impl JobOptions {
    /// The job: these options over their job file over the environment.
    ///
    /// # Errors
    /// Whatever is wrong in any of them.
    pub fn into_job(self) -> Result<Job, Error> {
        let flags = self.flags();
        let (options, path) = self.into_raw()?;
        let below = match path {
            Some(path) => file::read(&path)?,
            None => Raw::default(),
        };
        Job::new(options.over(below), flags, &environment())
    }

    /// What the options alone say of the log: enough to tell in its form what is wrong with the job.
    pub fn log_said(&self) -> Log {
        let showing = &self.showing;
        Log { level: showing.log_level, format: showing.log_format.unwrap_or_default(), file: showing.log_file.clone() }
    }

    fn flags(&self) -> RunFlags {
        RunFlags {
            yes: self.writing.yes,
            restart: self.running.restart,
            takeover: self.running.takeover,
            unfenced: self.running.unfenced,
            progress: self.showing.progress.unwrap_or_default(),
        }
    }

    /// The options' layer, and the path of the job file if one is named.
    fn into_raw(self) -> Result<(Raw, Option<PathBuf>), Error> {
        let JobOptions { places, ends, what, writing, running, showing } = self;
        let (source, target) = (ends.source.clone(), ends.target.clone());
        let Named { file, source, target } = sort_places(places, source, target)?;
        let source = RawSource {
            url: parse_place(Side::Source, source)?,
            copy: what.copy,
            prefer_replica: given(what.prefer_replica),
            ack: running.ack,
            ..ends.source()
        };
        let target = RawTarget { url: parse_place(Side::Target, target)?, ..writing.target(ends) };
        let raw = Raw {
            job: running.job,
            once: given(what.once),
            on_error: writing.on_error,
            source,
            target,
            filter: what.filter(),
            limits: RawLimits {
                memory: running.memory,
                spool_dir: running.spool_dir,
                spool: running.spool,
                rate: running.rate,
                retry_for: running.retry_for,
            },
            http: RawHttp { listen: showing.http },
            log: RawLog { level: showing.log_level, format: showing.log_format, file: showing.log_file },
        };
        Ok((raw, file))
    }
}

impl Ends {
    fn source(&self) -> RawSource {
        RawSource {
            password_file: self.source_password_file.clone(),
            sentinel_user: self.source_sentinel_user.clone(),
            sentinel_password_file: self.source_sentinel_password_file.clone(),
            cacert: self.source_cacert.clone(),
            cert: self.source_cert.clone(),
            key: self.source_key.clone(),
            sni: self.source_sni.clone(),
            insecure: given(self.source_insecure),
            address_map: self.source_address_map.clone(),
            ..RawSource::default()
        }
    }
}

impl Writing {
    fn target(&self, ends: Ends) -> RawTarget {
        RawTarget {
            url: None,
            password_file: ends.target_password_file,
            sentinel_user: ends.target_sentinel_user,
            sentinel_password_file: ends.target_sentinel_password_file,
            cacert: ends.target_cacert,
            cert: ends.target_cert,
            key: ends.target_key,
            sni: ends.target_sni,
            insecure: given(ends.target_insecure),
            address_map: ends.target_address_map,
            existing: self.existing,
            flush: given(self.flush_target),
            lanes: self.lanes,
            expiry_grace: self.expiry_grace,
            guard_memory: self.guard_memory.clone(),
            allow_eviction: given(self.allow_eviction),
            lossy: given(self.lossy),
        }
    }
}

impl What {
    fn filter(self) -> RawFilter {
        let bytes = |globs: Vec<OsString>| {
            let globs = globs.into_iter().map(OsString::into_encoded_bytes);
            listed(globs.collect())
        };
        RawFilter {
            databases: listed(self.db),
            database_map: self.db_map,
            keys: bytes(self.key),
            not_keys: bytes(self.not_key),
            key_regexes: listed(self.key_regex),
            not_key_regexes: listed(self.not_key_regex),
            types: listed(self.types),
            not_commands: listed(self.not_command),
        }
    }
}

/// What the command line names, whether by its place or by an option.
struct Named {
    file: Option<PathBuf>,
    source: Option<String>,
    target: Option<String>,
}

/// Tells the job file from the ends.
fn sort_places(mut places: Vec<String>, source: Option<String>, target: Option<String>) -> Result<Named, Error> {
    let is_file = |place: &String| place.to_ascii_lowercase().ends_with(".toml");
    let file = places.first().is_some_and(is_file).then(|| PathBuf::from(places.remove(0)));
    let form = "keyferry sync [JOB.toml] [SOURCE TARGET] [options]";
    let mut places = places.into_iter();
    let (source, target) = match (places.next(), places.next(), places.next()) {
        (None, ..) => (source, target),
        (Some(_), None, _) => {
            let words = "a source without a target, or a job file that doesn't end in .toml";
            return Err(Error::usage(words, form));
        }
        (_, _, Some(_)) => return Err(Error::usage("more than a source and a target", form)),
        _ if source.is_some() || target.is_some() => {
            let words = "the ends are given twice: by their place, and by --source or --target";
            return Err(Error::usage(words, form));
        }
        (first, second, None) => (first, second),
    };
    Ok(Named { file, source, target })
}

fn parse_place(side: Side, text: Option<String>) -> Result<Option<Place>, Error> {
    let place = text.map(|text| Place::parse(&text)).transpose();
    place.map_err(|error| Error::usage(format!("the {side}'s URL: {error}"), error.hint()))
}

/// A switch that isn't given leaves the job file's word.
fn given(switch: bool) -> Option<bool> {
    switch.then_some(true)
}

fn listed<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Takes the words of a choice, and offers them to a shell's completion.
fn word<W: Word>() -> impl TypedValueParser<Value = W> {
    let words = W::ALL.iter().map(|(word, _)| *word);
    PossibleValuesParser::new(words).try_map(|text| W::parse(&text))
}

fn environment() -> Environment {
    let password = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(|value| Secret::new(value.into_encoded_bytes()))
    };
    let folder = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    Environment {
        source_password: password("KEYFERRY_SOURCE_PASSWORD"),
        target_password: password("KEYFERRY_TARGET_PASSWORD"),
        source_sentinel_password: password("KEYFERRY_SOURCE_SENTINEL_PASSWORD"),
        target_sentinel_password: password("KEYFERRY_TARGET_SENTINEL_PASSWORD"),
        state_home: folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state"))),
    }
}
