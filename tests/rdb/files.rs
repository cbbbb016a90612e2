//! Files that servers of each version saved, decoded and compared with what those servers said of their data.
//!
//! The files lie in `tests/data/rdb`: `<server>.rdb`, and `<server>.txt` with the server's words (`said.rs`). Write them anew,
//! from all servers that there are (`tests/servers.sh` with every name brings them), with
//!
//! ```text
//! cargo test --test rdb -- --ignored write_files_of_every_server
//! ```

use std::path::{Path, PathBuf};

use keyferry::rdb::{Decoder, Event, Key, Limits, Project, Stream, Value, decode, opcode, type_name};

use crate::said::{GroupTold, StreamTold, Told, ask, line};
use crate::servers::{Size, names, populate, start};

/// Just over what the servers pack into one container by default, so that both forms of each type are there.
const SIZE: Size = Size { elements: 530, pad_max: 3, odd_bytes: 600 };

/// Types that are in no file of these servers: older than 2.6, release candidates', and the forms that only DUMP has.
const UNWRITTEN: [&str; 5] =
    ["HASH_ZIPMAP", "HASH_METADATA_PRE_GA", "HASH_LISTPACK_EX_PRE_GA", "HASH_TMPL_LP", "HASH_TMPL_ARRAY"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rdb")
}

struct Saved {
    name: String,
    file: Vec<u8>,
    said: Vec<String>,
}

fn all_saved() -> Vec<Saved> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "rdb"));
    paths.sort();
    let saved: Vec<Saved> = paths
        .iter()
        .map(|path| Saved {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            file: std::fs::read(path).unwrap(),
            said: std::fs::read_to_string(path.with_extension("txt")).unwrap().lines().map(str::to_owned).collect(),
        })
        .collect();
    assert!(saved.len() >= 15, "only {} files in {}", saved.len(), folder().display());
    saved
}

#[test]
#[ignore = "writes tests/data/rdb from real servers"]
fn write_files_of_every_server() {
    for name in names() {
        let mut server = start(&name).expect("a server");
        populate(&mut server, &SIZE);
        let code = "#!lua name=mylib\nredis.register_function('f1', function(keys,args) return 1 end)\n";
        // Servers before 7.0 have none.
        let _ = server.call(&[b"FUNCTION", b"LOAD", code.as_bytes()]);
        for words in ["SELECT 3", "SET elsewhere 1", "PEXPIREAT elsewhere 33177117420001", "SELECT 0"] {
            server.line(words).unwrap();
        }
        let said = ask(&mut server);
        server.line("SAVE").unwrap();
        let to = folder().join(&name);
        std::fs::copy(server.dir.path().join("dump.rdb"), to.with_file_name(format!("{name}.rdb"))).unwrap();
        std::fs::write(to.with_file_name(format!("{name}.txt")), said.join("\n") + "\n").unwrap();
        println!("{name}: {} lines", said.len());
    }
}

#[test]
fn files_of_every_server_decode_to_what_it_said() {
    for saved in all_saved() {
        same(&saved, "whole", &decoded(saved.file.chunks(saved.file.len())));
    }
}

#[test]
fn files_of_every_server_decode_the_same_byte_by_byte_and_at_any_split() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for saved in all_saved() {
        same(&saved, "byte by byte", &decoded(saved.file.chunks(1)));
        for round in 0..3 {
            let (mut pieces, mut rest) = (Vec::new(), &saved.file[..]);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random.usize(1..=rest.len().min(1 << (4 * round + 3))));
                pieces.push(piece);
                rest = after;
            }
            same(&saved, &format!("in {} pieces, seed {seed}", pieces.len()), &decoded(pieces.into_iter()));
        }
    }
}

/// Every type that the decoder knows is in a file of some server.
#[test]
fn files_of_all_servers_have_every_type() {
    let mut found: Vec<&str> = Vec::new();
    for saved in all_saved() {
        each_key(saved.file.chunks(saved.file.len()), |_, key| {
            found.extend(type_name(key.value.project, key.value.value_type));
        });
    }
    let known = [Project::Redis, Project::Valkey].into_iter().flat_map(|project| {
        (0..=opcode::HASH_TMPL_ARRAY_REF).filter_map(move |value_type| type_name(project, value_type))
    });
    let wanting: Vec<&str> = known.filter(|name| !found.contains(name) && !UNWRITTEN.contains(name)).collect();
    assert!(wanting.is_empty(), "no file has {wanting:?}");
}

/// Fails with the first lines that differ; of what the server said all but the encoding is compared.
fn same(saved: &Saved, how: &str, decoded: &[String]) {
    let mut said: Vec<String> = saved.said.iter().map(|line| without_encoding(line)).collect();
    let mut decoded: Vec<String> = decoded.iter().map(|line| without_encoding(line)).collect();
    said.sort();
    decoded.sort();
    let pair = said.iter().zip(&decoded).find(|(a, b)| a != b);
    assert!(pair.is_none(), "{} {how}:\n  said    {}\n  decoded {}", saved.name, pair.unwrap().0, pair.unwrap().1);
    assert_eq!(said.len(), decoded.len(), "{} {how}: lines", saved.name);
}

/// The words behind a key's quoted name, which may hold spaces, are type, encoding and the rest.
fn without_encoding(line: &str) -> String {
    let mut ends = line.match_indices('\'').map(|(at, _)| at).filter(|at| *at == 0 || !line[..*at].ends_with('\\'));
    let name_ends = ends.nth(1).expect("a quoted name") + 2;
    let mut words = line[name_ends..].splitn(3, ' ');
    let (kind, _, rest) = (words.next().unwrap(), words.next(), words.next().unwrap());
    format!("{}{kind} {rest}", &line[..name_ends])
}

fn each_key<'a>(pieces: impl Iterator<Item = &'a [u8]>, mut found: impl FnMut(u32, &Key)) -> Vec<String> {
    let mut decoder = Decoder::new(Limits::default());
    let (mut db, mut libraries) = (0, Vec::new());
    let mut checked = None;
    for piece in pieces {
        decoder.feed(piece);
        while let Some(event) = decoder.next().unwrap() {
            match event {
                Event::Key(key) => found(db, &key),
                Event::SelectDb(number) => db = number,
                Event::Function { code } => {
                    libraries.push(line(0, b"mylib", "function", "-", -1, Told::Code(code.into_owned())));
                }
                Event::End { crc_checked } => {
                    checked = Some(crc_checked);
                    break;
                }
                Event::Header { .. } | Event::Aux { .. } | Event::ResizeDb { .. } | Event::Skipped(_) => {}
                other => panic!("no server saved this: {other:?}"),
            }
        }
    }
    assert_eq!(checked, Some(true), "the file's end, with a checksum");
    libraries
}

fn decoded<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut lines = Vec::new();
    let libraries = each_key(pieces, |db, key| {
        let value = decode(&key.value, &Limits::default()).unwrap();
        // A module's type is its own business.
        let kind = if matches!(value, Value::Module { .. }) { "vectorset" } else { value.type_word() };
        let value = told(value, key.value.value_type);
        lines.push(line(db, key.name, kind, "-", key.expires_at_ms.unwrap_or(-1), value));
    });
    lines.extend(libraries);
    lines
}

fn told(value: Value, value_type: u8) -> Told {
    match value {
        Value::String(text) => Told::String(text),
        Value::List(items) => Told::List(items),
        Value::Set(members) => Told::Set(members),
        Value::Zset(members) => Told::Zset(members.into_iter().map(|m| (m.member, m.score)).collect()),
        Value::Hash(fields) => {
            Told::Hash(fields.into_iter().map(|f| (f.field, f.value, f.expires_at_ms.unwrap_or(-1))).collect())
        }
        Value::Array(array) => Told::Array(array.items),
        Value::Stream(stream) => Told::Stream(stream_told(*stream, value_type)),
        Value::Module { .. } | Value::Gcra { .. } => Told::Untold,
    }
}

fn stream_told(stream: Stream, value_type: u8) -> StreamTold {
    // What commands tell since 7.0 stands in the file since then.
    let counted = value_type != opcode::STREAM;
    let entries = stream.entries.into_iter().map(|entry| {
        let fields = entry.fields.into_iter().flat_map(|(field, value)| [field, value]);
        (entry.id.to_string(), fields.collect())
    });
    StreamTold {
        entries: entries.collect(),
        last_id: stream.meta.last_id.to_string(),
        counters: counted.then(|| (stream.meta.max_deleted_id.to_string(), stream.meta.entries_added)),
        groups: stream
            .groups
            .into_iter()
            .map(|group| {
                let owned = group.consumers.iter().flat_map(|c| c.pending.iter().map(|p| (c.name.clone(), p)));
                let given_back = group.nacked.iter().map(|pending| (Vec::new(), pending));
                let pending = owned.chain(given_back).map(|(owner, p)| (p.id.to_string(), owner, p.deliveries));
                GroupTold {
                    last_id: group.last_id.to_string(),
                    entries_read: group.entries_read.filter(|_| counted),
                    pending: pending.collect(),
                    consumers: group.consumers.iter().map(|c| c.name.clone()).collect(),
                    name: group.name,
                }
            })
            .collect(),
    }
}
