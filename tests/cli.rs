//! What the user types and sees: the real program, its exit codes and words.

use std::path::Path;

use assert_cmd::Command;

/// In every password here: it may be seen nowhere.
const SECRET: &str = "hunter2";

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn keyferry(arguments: &[&str]) -> Said {
    keyferry_with(arguments, &[])
}

/// Runs the program without a terminal; nothing it says may hold the secret.
fn keyferry_with(arguments: &[&str], environment: &[(&str, &str)]) -> Said {
    let mut command = Command::cargo_bin("keyferry").unwrap();
    for name in ["KEYFERRY_SOURCE_PASSWORD", "KEYFERRY_TARGET_PASSWORD", "KEYFERRY_LOG"] {
        command.env_remove(name);
    }
    let output = command
        .args(arguments)
        .envs(environment.iter().copied())
        .timeout(std::time::Duration::from_secs(20))
        .output()
        .unwrap();
    let said = Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(!said.out.contains(SECRET), "{}", said.out);
    assert!(!said.err.contains(SECRET), "{}", said.err);
    assert!(!said.err.contains("panicked"), "{}", said.err);
    assert!(!said.err.contains('\x1b'), "colours without a terminal: {}", said.err);
    said
}

/// Runs a mistake: exit code 2, all `words` in what is said, `error:` first.
fn mistake(arguments: &[&str], words: &[&str]) {
    let said = keyferry(arguments);
    assert_eq!(said.code, 2, "{arguments:?}: {}", said.err);
    assert!(said.err.starts_with("error: "), "{arguments:?}: {}", said.err);
    for word in words {
        assert!(said.err.contains(word), "{arguments:?}: no '{word}' in: {}", said.err);
    }
    assert_eq!(said.out, "");
}

/// Runs the mistake in a job file of these lines.
fn mistake_in_file(text: &str, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.toml");
    std::fs::write(&path, text).unwrap();
    mistake(&["sync", path.to_str().unwrap()], words);
}

#[test]
fn help_of_sync_is_as_reviewed() {
    let said = keyferry(&["sync", "--help"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(said.out, keyferry(&["sync", "-h"]).out, "one help, and it is the short one");
    insta::assert_snapshot!(said.out);
}

#[test]
fn help_names_every_option_of_the_contract_with_its_default() {
    let out = keyferry(&["sync", "--help"]).out.replace('\n', " ");
    let contract = "source target job once db db-map key not-key key-regex not-key-regex type not-command existing \
        flush-target lanes copy prefer-replica memory spool-dir spool rate guard-memory on-error expiry-grace \
        allow-eviction takeover unfenced restart ack lossy source-address-map retry-for http log-level log-format \
        log-file progress source-password-file source-cacert source-cert source-key source-sni source-insecure yes";
    for option in contract.split_whitespace() {
        assert!(out.contains(&format!("--{option} ")), "--{option}");
    }
    let options = out.matches("      --").count();
    let defaults = out.split_whitespace().collect::<Vec<_>>().join(" ");
    let defaults = defaults.matches("default").count();
    assert_eq!(options, defaults, "every option names its default");
    assert!(out.contains("show in `ps`"));
}

#[test]
fn options_of_the_target_are_taken_though_not_listed() {
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("p");
    std::fs::write(&password, SECRET).unwrap();
    let tls = |name: &str| format!("{}/tests/data/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let said = keyferry(&[
        "sync",
        "redis://127.0.0.1:1",
        "rediss://u@127.0.0.1:2",
        "--target-password-file",
        password.to_str().unwrap(),
        "--target-cacert",
        &tls("ca.pem"),
        "--target-cert",
        &tls("client.pem"),
        "--target-key",
        &tls("client.key"),
        "--target-sni",
        "x",
        "--target-insecure",
        "--target-address-map",
        "a=b",
        "--retry-for",
        "1ms",
        "--progress",
        "none",
    ]);
    assert_ne!(said.code, 2, "{}", said.err);
}

#[test]
fn version_completions_and_manual_go_to_standard_output() {
    assert!(keyferry(&["--version"]).out.starts_with("keyferry "));
    for shell in ["bash", "zsh", "fish"] {
        let said = keyferry(&["completions", shell]);
        assert!(said.code == 0 && said.out.contains("not-key-regex"), "{shell}");
    }
    assert!(keyferry(&["man"]).out.contains(".TH keyferry"));
    assert!(keyferry(&["man", "sync"]).out.contains("expiry"));
    mistake(&["man", "snyc"], &["there is no command 'snyc'"]);
}

#[test]
fn nothing_or_something_unknown_is_a_usage_error() {
    assert_eq!(keyferry(&[]).code, 2);
    mistake(&["snyc"], &["unrecognized subcommand 'snyc'", "hint: ", "'sync'"]);
    mistake(&["sync"], &["neither a source nor a target", "hint: keyferry sync redis://"]);
    mistake(&["sync", "--existng", "keep"], &["'--existng'", "hint: ", "'--existing'"]);
}

#[test]
fn places_that_dont_add_up_are_refused() {
    mistake(&["sync", "redis://a"], &["a source without a target"]);
    mistake(&["sync", "job.tml"], &["doesn't end in .toml"]);
    mistake(&["sync", "redis://a", "redis://b", "redis://c"], &["more than a source and a target"]);
    mistake(&["sync", "redis://a", "redis://b", "--target", "redis://c"], &["given twice"]);
    mistake(&["sync", "--source", "redis://a"], &["no target is given", "--target redis://host:port"]);
    mistake(&["sync", "none.toml"], &["can't read none.toml"]);
    mistake(
        &["sync", "localhost:1", "redis://b"],
        &["the source's URL: an address without a scheme", "redis://host:port"],
    );
    mistake(&["sync", "redis://a", "redis://b:x"], &["the target's URL: ", "not a port"]);
}

#[test]
fn one_server_as_source_and_target_is_refused() {
    let words = ["source and target are the same server: 127.0.0.1:6379"];
    mistake(&["sync", "redis://127.0.0.1", "redis://127.0.0.1:6379/5"], &words);
    mistake(&["sync", "--source", "redis://h:1", "--target", "rediss://:hunter2@H:1"], &["same server"]);
}

#[test]
fn bad_values_of_options_name_the_choices() {
    let ends = ["sync", "redis://u:hunter2@a", "redis://b"];
    for (option, value, words) in [
        ("--existing", "repalce", ["possible values: refuse, replace, keep", "'replace'"]),
        ("--on-error", "ignore", ["stop, skip, recopy", "--on-error"]),
        ("--type", "string,hsh", ["string, list, set, zset, hash", "'hash'"]),
        ("--progress", "BAR", ["auto, bar, log, none", "'BAR'"]),
        ("--memory", "256M", ["256MiB", "--memory"]),
        ("--memory", "1MiB", ["too little", "16 MiB"]),
        ("--rate", "0", ["leave it out", "--rate"]),
        ("--expiry-grace", "20", ["has no unit", "20s"]),
        ("--retry-for", "soon", ["not a duration", "5m"]),
        ("--lanes", "0", ["1 to 64", "measured"]),
        ("--lanes", "many", ["many", "--lanes"]),
        ("--db", "2,x", ["'x'", "--db"]),
        ("--db-map", "2", ["SOURCE:TARGET", "2:0,5:1"]),
        ("--job", "a b", ["can't be a job's name", "letters, digits"]),
        ("--key-regex", "(", ["not a regular expression", "'('"]),
        ("--not-command", "a|b|c", ["is not a command", "xgroup|create"]),
        ("--source-address-map", "a", ["ANNOUNCED=REACHABLE", "--source-address-map"]),
        ("--existing", "keep", ["only with --once", "--existing replace"]),
        ("--db-map", "2:0,2:1", ["mapped twice", "database 2"]),
        ("--source-cacert", "x.pem", ["not rediss://", "TLS"]),
        ("--source-password-file", "/nowhere", ["can't read /nowhere", "No such file"]),
    ] {
        mistake(&[&ends[..], &[option, value]].concat(), &words);
    }
    mistake(&[&ends[..], &["--db", "2", "--db-map", "5:1"]].concat(), &["maps database 5", "add 5 to --db"]);
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    for (arguments, word) in [
        (&["redis://a", "redis://b", "--copy", "scan"][..], "--copy scan"),
        (&["redis://a", "redis://b", "--guard-memory", "90%"], "--guard-memory"),
        (&["redis://a", "redis://b", "--http", "127.0.0.1:1"], "--http"),
        (&["dump.rdb", "redis://b"], "reading from a file"),
    ] {
        let words = [word, "is not yet supported", "hint: "];
        mistake(&[&["sync"], arguments].concat(), &words);
    }
}

#[test]
fn mistakes_in_a_job_file_name_line_and_nearest() {
    for (text, words) in [
        (
            "[source]\nurl = 'redis://a'\n[target]\nurl = 'redis://b'\nexistng = 'keep'",
            &["job.toml, line 5: unknown key 'existng' in [target]", "hint: did you mean 'existing'?"][..],
        ),
        ("\n[target]\nexisting = 'repalce'", &["line 3: ", "refuse, replace, keep", "'replace'"]),
        ("[limit]\nrate = 1", &["line 1: unknown section [limit]", "'limits'"]),
        ("[limits]\nrate = 'fast'", &["line 2: 'fast' is not a size"]),
        ("[source]\nurl = 'redis://:hunter2@h:x'", &["line 2: ", "not a port"]),
        ("[source]\nurl = 'redis://:hunter2@h", &["line 2: "]),
        ("[source]\npassword = 'hunter2'", &["line 2: ", "password_file", "KEYFERRY_SOURCE_PASSWORD"]),
        ("once = 1", &["line 1: ", "true or false"]),
        ("[sync_reader]\naddress = 'h:1'", &["line 1: ", "RedisShake file", "not supported yet"]),
    ] {
        mistake_in_file(text, words);
    }
}

#[test]
fn options_beat_the_job_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.toml");
    std::fs::write(&path, "[source]\nurl = 'redis://a'\n[target]\nurl = 'redis://b'\nexisting = 'keep'").unwrap();
    let path = path.to_str().unwrap();
    mistake(&["sync", path], &["only with --once"]);
    mistake(&["sync", path, "redis://x:1", "redis://x:1", "--existing", "replace"], &["the same server: x:1"]);
    mistake(&["sync", path, "--target", "redis://a", "--once"], &["the same server: a:6379"]);
}

#[test]
fn passwords_in_any_place_are_seen_nowhere() {
    let urls = ["redis://u:hunter2@127.0.0.1:1", "redis://:hunter2@127.0.0.1:2"];
    mistake(&["sync", urls[0], urls[1], urls[0], urls[1]], &["'redis://***@127.0.0.1:2'"]);
    mistake(&["sync", urls[0], urls[1], "--db", urls[0]], &["***@"]);
    mistake(&["sync", urls[0], urls[1], "--job", urls[0]], &[]);
    mistake(&["sync", urls[0], urls[1], &format!("--existing={}", urls[0])], &["***@"]);
    mistake(
        &["sync", "redis://hunter2@127.0.0.1:1", urls[1]],
        &["names a user, but there is no password", ":password@host"],
    );
    mistake(&["sync", "redis://u:hunter2", urls[1]], &["the source's URL"]);
    let environment = [("KEYFERRY_SOURCE_PASSWORD", SECRET), ("KEYFERRY_LOG", "trace")];
    let tried =
        ["sync", "redis://u@127.0.0.1:1", urls[1], "--retry-for", "1ms", "--progress", "log", "--log-format", "json"];
    assert_ne!(keyferry_with(&tried, &environment).code, 2);
}

#[test]
fn flush_without_a_terminal_needs_yes() {
    let flush = [
        "sync",
        "redis://127.0.0.1:1",
        "redis://:hunter2@127.0.0.1:2",
        "--flush-target",
        "--retry-for",
        "1ms",
        "--progress",
        "none",
    ];
    mistake(&flush, &["would delete every key of redis://:***@127.0.0.1:2", "hint: add --yes"]);
    assert_ne!(keyferry(&[&flush[..], &["--yes"]].concat()).code, 2);
}

#[test]
fn log_that_cant_be_kept_is_a_usage_error() {
    let ends = ["sync", "redis://a", "redis://b"];
    mistake(&[&ends[..], &["--log-file", "/nowhere/log"]].concat(), &["can't open the log file /nowhere/log"]);
    let said = keyferry_with(&ends, &[("KEYFERRY_LOG", "keyferry=loud")]);
    assert!(said.code == 2 && said.err.contains("KEYFERRY_LOG"), "{}", said.err);
}

#[test]
fn example_job_files_are_valid() {
    use keyferry::config::{file, raw::Raw, valid};
    let mut count = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        count += 1;
        let mut raw: Raw = file::read(&path).unwrap_or_else(|e| panic!("{e}"));
        raw.source.password_file = None;
        let environment = valid::Environment {
            source_password: Some(keyferry::net::secret::Secret::new("x")),
            ..valid::Environment::default()
        };
        let job = valid::Job::new(raw, valid::RunFlags::default(), &environment);
        let job = job.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(job.notes, Vec::<String>::new(), "{}", path.display());
    }
    assert!(count >= 3, "{count}");
}

#[test]
fn finish_takes_the_job_as_sync_does_and_never_flushes() {
    mistake(&["finish"], &["source", "hint: "]);
    mistake(&["finish", "redis://a", "redis://b", "--lannes", "4"], &["--lanes"]);
    let said = keyferry(&[
        "finish",
        "redis://127.0.0.1:1",
        "redis://127.0.0.1:2",
        "--flush-target",
        "--source-gone",
        "--retry-for",
        "1ms",
        "--progress",
        "none",
    ]);
    // Not asked whether to flush, but told that the target isn't there.
    assert_eq!(said.code, 5, "{}", said.err);
}

#[test]
fn mistake_in_a_job_is_json_where_json_was_asked_for() {
    for wrong in [&["--lanes", "65"][..], &["--db", "1", "--db-map", "2:0"], &["--not-command", "flusall"]] {
        let job = ["sync", "redis://127.0.0.1:1", "redis://127.0.0.1:2", "--log-format", "json"];
        let said = keyferry(&[&job[..], wrong].concat());
        assert_eq!(said.code, 2, "{}", said.err);
        assert!(said.err.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{}", said.err);
        assert!(said.err.contains("\"level\":\"ERROR\",\"message\":"), "{}", said.err);
    }
}
