//! The project's rules that a compiler doesn't know: who may use whom, how long files and functions are, who prints and exits.

use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
/// Files that are tables of data: their length says nothing.
const TABLES: &[&str] = &["commands/rows.rs", "commands/table.rs", "rdb/opcode.rs"];

/// The layers, outermost last: a module uses only modules of its own or an earlier row.
const LAYERS: &[&[&str]] = &[
    &["args", "offset", "slot"],
    &["resp", "rdb", "repl", "commands", "filter", "delivery", "route"],
    &["clock", "failpoint", "net", "status", "source", "target", "journal"],
    &["pipeline"],
    &["config", "cli"],
];
/// What an inner layer may use of an outer one: words about the job that are parsed once.
const ALLOWED: &[(&str, &str)] = &[("pipeline", "config")];
/// Neighbours that don't know each other.
const STRANGERS: &[(&str, &str)] = &[("source", "target"), ("rdb", "resp")];
/// Only these start threads: the decoder, which is the work, and the display, which must go on while all else is busy.
const THREADS: &[&str] = &["pipeline/", "cli/progress.rs"];

/// A source file: its path below `src`, its text without tests, and the whole.
struct File {
    name: String,
    code: String,
    text: String,
}

fn sources() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    for path in rust_files(&root) {
        let text = fs::read_to_string(&path).expect("a source file is read");
        let name = path.strip_prefix(&root).expect("below src");
        let name = name.display().to_string();
        if name.ends_with("tests.rs") || is_test_module(&path, &root) {
            continue;
        }
        let code = without_tests(&text);
        files.push(File { name, code, text });
    }
    assert!(files.len() > 5, "no sources under {}", root.display());
    files
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder is read") {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Whether the file, or a folder it lies in, is declared as `#[cfg(test)] mod name;` by its parent module.
fn is_test_module(path: &Path, root: &Path) -> bool {
    let module = path.with_extension("");
    module.ancestors().take_while(|m| *m != root).any(|m| {
        let (Some(name), Some(parent)) = (m.file_name(), m.parent()) else {
            return false;
        };
        let declared = format!("#[cfg(test)]\nmod {};", name.display());
        let by_path = format!("#[path = \"{}.rs\"]", name.display());
        [parent.join("mod.rs"), parent.with_extension("rs"), parent.join("lib.rs")]
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok())
            .any(|text| text.contains(&declared) || text.contains(&by_path))
    })
}

/// Cuts the file at its test module, which is last by the style's rule.
fn without_tests(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end].to_string()
}

/// The code of a line, without what a comment says.
fn code_of(line: &str) -> &str {
    let line = line.trim_start();
    if line.starts_with("//") {
        return "";
    }
    line.split(" // ").next().unwrap_or(line)
}

impl File {
    /// The module of the crate's root that the file belongs to.
    fn module(&self) -> &str {
        let first = self.name.split('/').next().unwrap_or(&self.name);
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// Line numbers, from 1, and code of the lines outside of tests.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(i, line)| (i + 1, code_of(line)))
    }

    /// The lines that hold one of `words`.
    fn with(&self, words: &[&str]) -> Vec<String> {
        self.lines()
            .filter(|(_, line)| words.iter().any(|w| line.contains(w)))
            .map(|(n, line)| format!("src/{}:{n}: {line}", self.name))
            .collect()
    }
}

fn none(rule: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&module))
}

/// The modules that a line names behind `crate::`.
fn used(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").filter_map(|(at, word)| {
        let rest = &line[at + word.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        Some(&rest[..end.unwrap_or(rest.len())]).filter(|name| !name.is_empty())
    })
}

#[test]
fn every_module_has_a_layer() {
    let unknown = sources()
        .iter()
        .filter(|f| !["lib", "main"].contains(&f.module()) && layer(f.module()).is_none())
        .map(|f| f.name.clone())
        .collect();
    none("modules that tests/tidy.rs gives no layer", unknown);
}

#[test]
fn layers_know_only_earlier_ones() {
    let mut found = Vec::new();
    for file in sources() {
        let own = file.module();
        let Some(mine) = layer(own) else { continue };
        for (n, line) in file.lines() {
            for other in used(line) {
                let strangers = STRANGERS.iter().any(|&(a, b)| (a, b) == (own, other) || (b, a) == (own, other));
                let outward = layer(other).is_some_and(|l| l > mine);
                if strangers || outward && !ALLOWED.contains(&(own, other)) {
                    found.push(format!("src/{}:{n}: {own} uses {other}", file.name));
                }
            }
        }
    }
    none("a layer uses only layers above it in ARCHITECTURE.md", found);
}

#[test]
fn pure_layers_touch_no_outside() {
    let outside = ["tokio::", "std::thread", "std::net", "std::fs", "SystemTime", "Instant", "tracing::"];
    let found =
        sources().iter().filter(|f| layer(f.module()).is_some_and(|l| l <= 1)).flat_map(|f| f.with(&outside)).collect();
    none("no sockets, threads, clock, files or logging in L0 and L1", found);
}

#[test]
fn only_pipeline_and_display_start_threads() {
    let found = sources()
        .iter()
        .filter(|f| !THREADS.iter().any(|name| f.name.starts_with(name)))
        .flat_map(|f| f.with(&["thread::spawn", "thread::Builder"]))
        .collect();
    none("threads belong to the pipeline and the display", found);
}

#[test]
fn files_are_short() {
    let found = sources()
        .iter()
        .filter(|f| !TABLES.contains(&f.name.as_str()))
        .filter(|f| f.text.lines().count() > FILE_LINES_MAX)
        .map(|f| format!("src/{}: {} lines", f.name, f.text.lines().count()))
        .collect();
    none("no file over 800 lines, tables apart", found);
}

#[test]
fn functions_are_short() {
    let mut found = Vec::new();
    for file in sources() {
        if TABLES.contains(&file.name.as_str()) {
            continue;
        }
        // rustfmt closes a function at the indent at which it began.
        let mut open: Vec<(usize, usize, String)> = Vec::new();
        for (i, line) in file.code.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let code = code_of(line);
            if is_function(code) && !code.ends_with(';') && !code.ends_with('}') {
                open.push((indent, i, code.to_string()));
            }
            let ends = code == "}" || code.starts_with("};");
            if ends && open.last().is_some_and(|(at, ..)| *at == indent) {
                let (_, from, head) = open.pop().expect("one is open");
                let lines = i - from + 1;
                if lines > FUNCTION_LINES_MAX {
                    found.push(format!("src/{}:{}: {lines} lines: {head}", file.name, from + 1));
                }
            }
        }
    }
    none("no function over 70 lines", found);
}

fn is_function(code: &str) -> bool {
    let mut words = code.split_whitespace();
    let known = ["pub", "pub(crate)", "pub(super)", "const", "async"];
    words.find(|w| !known.contains(w) && !w.starts_with("pub(in")) == Some("fn")
}

#[test]
fn nothing_unwraps_outside_of_tests() {
    let found = sources()
        .iter()
        .flat_map(|f| f.with(&[".unwrap()", ".expect(", "todo!(", "unimplemented!(", "dbg!("]))
        .filter(|line| !line.contains("parser.expect(") && !line.contains("r.expect("))
        .collect();
    none("no unwrap or expect outside of tests", found);
}

#[test]
fn only_output_prints() {
    let found = sources()
        .iter()
        .filter(|f| f.name != "cli/output.rs")
        .flat_map(|f| f.with(&["println!(", "print!(", "eprint!(", "eprintln!("]))
        .collect();
    none("only cli/output.rs prints", found);
}

#[test]
fn only_main_exits() {
    let found = sources()
        .iter()
        // A failpoint is there to kill the process, and only tests have it.
        .filter(|f| !["main.rs", "failpoint.rs"].contains(&f.name.as_str()))
        .flat_map(|f| f.with(&["process::exit", "process::abort"]))
        .collect();
    none("only main ends the process", found);
}

#[test]
fn main_is_thin() {
    let files = sources();
    let main = files.iter().find(|f| f.name == "main.rs").expect("main.rs");
    assert!(main.text.lines().count() < 60, "main.rs is under 60 lines");
}

#[test]
fn nothing_refers_outside_of_the_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Written in two parts, so that this file is not one of them.
    let word = concat!("../", "shared");
    let mut found = Vec::new();
    for dir in ["src", "tests", "benches", "examples", "fuzz/fuzz_targets", ".ci", "."] {
        let Ok(entries) = fs::read_dir(root.join(dir)) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        if dir == "src" || dir == "tests" {
            paths.extend(rust_files(&root.join(dir)));
        }
        for path in paths.iter().filter(|p| p.is_file()) {
            let bytes = fs::read(path).unwrap_or_default();
            if String::from_utf8_lossy(&bytes).contains(word) {
                found.push(path.display().to_string());
            }
        }
    }
    none("the repository stands alone", found);
}
