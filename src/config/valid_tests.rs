use super::*;
use crate::filter::TypeName;

const BOTH: &str = "[source]\nurl = 'redis://a'\n[target]\nurl = 'redis://b'\n";

fn job_with(text: &str, environment: &Environment) -> Result<Job, Error> {
    let raw = super::super::file::parse(Path::new("j.toml"), text)?;
    Job::new(raw, RunFlags::default(), environment)
}

fn job(text: &str) -> Job {
    job_with(text, &Environment::default()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The error of a job file's text, as the user sees it.
fn said(text: &str) -> String {
    match job_with(text, &Environment::default()) {
        Ok(job) => panic!("{text}: taken: {job:?}"),
        Err(error) => format!("{error} | {}", error.hint().unwrap_or("-")),
    }
}

fn ends(source: &str, target: &str, more: &str) -> String {
    format!("{more}\n[source]\nurl = '{source}'\n[target]\nurl = '{target}'\n")
}

#[test]
fn job_without_options_has_the_contracts_defaults() {
    let job = job(BOTH);
    assert_eq!((job.once, job.existing, job.flush_target), (false, Existing::Refuse, false));
    assert_eq!((job.lanes, job.memory_bytes, job.spool_bytes), (None, 256 << 20, 20 << 30));
    assert_eq!((job.rate_bytes_s, job.retry_for), (None, Some(Duration::from_secs(300))));
    assert_eq!((job.on_error, job.ack), (OnError::Stop, Ack::Applied));
    assert_eq!(job.expiry_grace, Duration::from_secs(3600));
    assert_eq!((job.scope, job.notes), (ScopeSpec::default(), vec![]));
}

#[test]
fn job_name_is_derived_from_the_addresses_alone() {
    let name = |source: &str, target: &str| job(&ends(source, target, "")).name;
    let plain = name("redis://a:1", "redis://b:2");
    assert_eq!(plain, "8523243bb917", "a changed derivation loses every running job's records");
    assert_eq!(name("rediss://u:p@A:1/3", "redis://:q@b:2/0"), plain);
    assert_ne!(name("redis://b:2", "redis://a:1"), plain);
    assert_eq!(job(&format!("job = 'x.y_z-1'\n{BOTH}")).name, "x.y_z-1");
    let longest = "n".repeat(JOB_NAME_LEN_MAX);
    assert_eq!(job(&format!("job = '{longest}'\n{BOTH}")).name, longest);
    for bad in ["", "a b", "a:b", "{x}", "é", &format!("{longest}n")] {
        assert!(said(&format!("job = '{bad}'\n{BOTH}")).contains("can't be a job's name"), "{bad}");
    }
}

/// Each text is refused with these words.
fn refused(cases: &[(&str, &str)]) {
    for (text, words) in cases {
        let said = said(text);
        assert!(said.contains(words), "{said}\nwant: {words}");
    }
}

#[test]
fn ends_that_contradict_themselves_are_refused_with_a_hint() {
    refused(&[
        ("", "neither a source nor a target is given"),
        ("[source]\nurl = 'redis://a'", "no target is given | add --target"),
        (&ends("redis://a", "redis://A:6379/1", ""), "source and target are the same server: a:6379"),
        (&ends("redis://u@a", "redis://b", ""), "the source's URL names a user, but there is no password"),
        (&format!("{BOTH}sni = 'x'"), "TLS options are given for the target, but its URL is not rediss://"),
        (
            &format!("{}cert = 'x'", ends("redis://a", "rediss://b", "")),
            "--target-cert and --target-key belong together",
        ),
        (&ends("redis://a", "redis://b/0", ""), "the target's URL names database 0, but the job copies several"),
        (
            &format!("{}[filter]\ndatabases = [1]", ends("redis://a/2", "redis://b", "")),
            "the source's URL names database 2, --db others",
        ),
        (
            &format!("{}[filter]\ndatabase_map = {{ 2 = 3 }}", ends("redis://a/2", "redis://b/1", "")),
            "database 2 goes to 3 by --db-map, to 1 by the target's URL",
        ),
    ]);
}

#[test]
fn values_out_of_their_range_are_refused_with_a_hint() {
    let with = |more: &str| format!("{BOTH}{more}");
    refused(&[
        (&with("existing = 'keep'"), "--existing keep works only with --once"),
        (&with("lanes = 0"), "--lanes 0 is out of range: 1 to 64"),
        (&with("lanes = 65"), "--lanes 65 is out of range"),
        (&with("[limits]\nmemory = '15MiB'"), "too little | 16 MiB is the least"),
        (&with("[filter]\ndatabases = []"), "--db names nothing"),
        (&with("[filter]\ntypes = []"), "--type names nothing"),
        (
            &with("[filter]\ndatabases = [1]\ndatabase_map = { 2 = 0 }"),
            "--db-map maps database 2, which is not among those of --db",
        ),
        (&with("[filter]\nkey_regexes = ['a(']"), "--key-regex 'a(' is not a regular expression: unclosed group"),
        (&with("[filter]\nnot_commands = ['a|b|c']"), "--not-command 'a|b|c' is not a command"),
    ]);
}

#[test]
fn limits_at_their_edge_are_taken() {
    let text = format!(
        "once = true\n{BOTH}existing = 'keep'\nlanes = 64\n[limits]\nmemory = '16MiB'\nretry_for = '0'\nrate = '1KiB'"
    );
    let job = job(&text);
    assert_eq!((job.lanes, job.memory_bytes), (Some(64), 16 << 20));
    assert_eq!((job.retry_for, job.rate_bytes_s), (None, Some(1024)));
}

#[test]
fn scope_of_urls_and_lists_is_one() {
    let scope = job(&ends("redis://a/2", "redis://b/0", "")).scope;
    assert_eq!((scope.databases, scope.database_map), (Some(vec![2]), [(2, 0)].into()));
    let text = format!(
        "{BOTH}[filter]\ndatabases = [11, 10, 11]\nnot_commands = ['FlushAll', 'XGROUP CREATE']\ntypes = ['zset', 'hash']"
    );
    let scope = job(&text).scope;
    assert_eq!(scope.databases, Some(vec![10, 11]));
    assert_eq!(scope.not_commands, ["flushall", "xgroup|create"]);
    assert_eq!(scope.types, Some(vec![TypeName::Zset, TypeName::Hash]));
}

#[test]
fn merged_databases_are_noted() {
    let notes = |filter: &str| job(&format!("{BOTH}[filter]\n{filter}")).notes.len();
    assert_eq!(notes("database_map = { 2 = 0 }"), 1);
    assert_eq!(notes("database_map = { 2 = 0, 5 = 0 }\ndatabases = [2, 5]"), 1);
    assert_eq!(notes("database_map = { 2 = 0, 5 = 1 }\ndatabases = [2, 5]"), 0);
    assert_eq!(notes("database_map = { 0 = 1, 1 = 0, 3 = 3 }"), 0);
}

#[test]
fn password_precedence_is_option_then_file_then_environment() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (one, two) = (write("one", "one\n"), write("two", "two \r\n"));
    let environment = Environment { source_password: Some(Secret::new("env")), ..Environment::default() };
    let password = |options: &str, file: &str| {
        let file = format!("{file}\n[target]\nurl = 'redis://b'");
        let read = |text: &str| super::super::file::parse(Path::new("j"), text).unwrap();
        let raw = read(options).over(read(&file));
        let job = Job::new(raw, RunFlags::default(), &environment).unwrap();
        String::from_utf8(job.source.endpoint.password.unwrap().reveal().to_vec()).unwrap()
    };
    let url = |url: &str| format!("[source]\nurl = '{url}'");
    let with_file = |url: &str, file: &str| format!("[source]\nurl = '{url}'\npassword_file = '{file}'");
    assert_eq!(password(&with_file("redis://:o@a", &one), &with_file("redis://:f@a", &two)), "one");
    assert_eq!(password(&url("redis://:o@a"), &with_file("redis://:f@a", &two)), "o");
    assert_eq!(password("", &with_file("redis://:f@a", &two)), "two ");
    assert_eq!(password("", &url("redis://:f@a")), "f");
    assert_eq!(password(&url("redis://a"), &url("redis://:f@a")), "env");
    assert_eq!(password("", &url("redis://u@a")), "env");
}

#[test]
fn password_file_that_is_empty_or_missing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    std::fs::write(&path, "\n").unwrap();
    let text = |path: &Path| {
        format!("[source]\nurl = 'redis://a'\npassword_file = '{}'\n[target]\nurl = 'redis://b'", path.display())
    };
    assert!(said(&text(&path)).contains("is empty"));
    assert!(said(&text(&dir.path().join("none"))).contains("can't read"));
}

#[test]
fn debug_of_a_job_never_shows_the_password() {
    let job = job(&ends("redis://u:hunter2@a", "redis://:hunter2@b", ""));
    let debug = format!("{job:?}");
    assert!(!debug.contains("hunter2") && debug.contains("***"), "{debug}");
}
