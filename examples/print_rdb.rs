//! Prints what is in an RDB file: `cargo run --release --example print_rdb -- dump.rdb`

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::process::ExitCode;

use keyferry::rdb::{Decoder, Event, Key, Limits, Project, TargetCaps, commands, decode, type_name};

const READ_BYTES: usize = 256 << 10;
const ARGS_SHOWN_MAX: usize = 12;
const ARG_SHOWN_MAX: usize = 40;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: print_rdb FILE")?;
    let mut file = File::open(path)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut decoder = Decoder::new(Limits::default());
    let mut chunk = vec![0; READ_BYTES];
    loop {
        let n = file.read(&mut chunk)?;
        if n == 0 {
            return Err("the file ends too early".into());
        }
        decoder.feed(&chunk[..n]);
        while let Some(event) = decoder.next()? {
            print(&mut out, &event)?;
            match event {
                Event::BigKey(_) => decoder.skip_value(),
                Event::End { .. } => return Ok(out.flush()?),
                _ => {}
            }
        }
    }
}

fn print(out: &mut impl Write, event: &Event<'_>) -> io::Result<()> {
    match event {
        Event::Aux { name, value } => writeln!(out, "aux {} = {}", name.escape_ascii(), value.escape_ascii()),
        Event::Function { code } => writeln!(out, "function library of {} bytes", code.len()),
        Event::BigKey(head) => writeln!(out, "key {} big {}", head.name.escape_ascii(), head.type_name),
        Event::Key(key) => print_key(out, key),
        other => writeln!(out, "{other:?}"),
    }
}

/// A key, as the commands that would make it on Redis 8.10.
fn print_key(out: &mut impl Write, key: &Key<'_>) -> io::Result<()> {
    let type_name = type_name(key.value.project, key.value.value_type).unwrap_or("?");
    writeln!(out, "key {} {type_name} of {} bytes", key.name.escape_ascii(), key.value.bytes.len())?;
    let value = match decode(&key.value, &Limits::default()) {
        Ok(value) => value,
        Err(error) => return writeln!(out, "  {error}"),
    };
    let target = TargetCaps::new(Project::Redis, (8, 10, 2));
    let mut result = Ok(());
    let written = commands(key.name, &value, key.expires_at_ms, &target, &mut |args| {
        let line: Vec<String> = args.iter().take(ARGS_SHOWN_MAX).map(|arg| shown(arg)).collect();
        let more = if args.len() > ARGS_SHOWN_MAX { " …" } else { "" };
        if result.is_ok() {
            result = writeln!(out, "  {}{more}", line.join(" "));
        }
    });
    result?;
    written.or_else(|unsupported| writeln!(out, "  {unsupported}"))
}

fn shown(arg: &[u8]) -> String {
    match arg.get(..ARG_SHOWN_MAX) {
        Some(head) => format!("\"{}…\"", head.escape_ascii()),
        None => format!("\"{}\"", arg.escape_ascii()),
    }
}
