//! Prints what is in an RDB file: `cargo run --release --example print_rdb -- dump.rdb`

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

use keyferry::rdb::{Decoder, Event, Limits, decode};

const READ_BYTES: usize = 256 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
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
        Event::Aux { name, value } => writeln!(
            out,
            "aux {} = {}",
            name.escape_ascii(),
            value.escape_ascii()
        ),
        Event::Function { code } => writeln!(out, "function library of {} bytes", code.len()),
        Event::BigKey(head) => writeln!(
            out,
            "key {} big {}",
            head.name.escape_ascii(),
            head.type_name
        ),
        Event::Key(key) => {
            write!(out, "key {}", key.name.escape_ascii())?;
            if let Some(ms) = key.expires_at_ms {
                write!(out, " expires at {ms} ms")?;
            }
            match decode(&key.value, &Limits::default()) {
                Ok(value) => writeln!(out, " {value:?}"),
                Err(error) => writeln!(out, " {error}"),
            }
        }
        other => writeln!(out, "{other:?}"),
    }
}
