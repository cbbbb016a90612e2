//! keyferry as a process: its output goes to a file, it is killed when it goes out of scope.

use crate::client::{Client, Reply};
use crate::server::Server;
use crate::wait::{HALF_MINUTE, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program under test: `$KEYFERRY_BIN`, else the one that cargo built with this test.
pub fn program() -> PathBuf {
    std::env::var_os("KEYFERRY_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_keyferry")), PathBuf::from)
}

/// True when every lane's record in the target says that the copy is whole.
pub fn is_following(target: &mut Client, job: &str) -> bool {
    let mut record = |lane: usize| match target.call(&cmd!["GET", format!("keyferry:{job}:lane:{lane}")]) {
        Reply::Nil => String::new(),
        reply => reply.text(),
    };
    let first = record(0);
    let lanes = first.split(' ').find_map(|word| word.strip_prefix("lanes=")?.parse().ok());
    lanes.is_some_and(|lanes| (0..lanes).all(|lane| record(lane).contains("phase=following")))
}

pub struct Tool {
    child: Child,
    dir: tempfile::TempDir,
    words: Vec<String>,
    status: Option<i32>,
}

impl Tool {
    /// `keyferry` with these arguments; state folder and working folder are temporary.
    pub fn run(args: &[&str]) -> Tool {
        Tool::run_with(args, &[])
    }

    /// The same with environment variables.
    pub fn run_with(args: &[&str], env: &[(&str, &str)]) -> Tool {
        Tool::run_program(&program(), args, env)
    }

    /// Another program than the one under test.
    pub fn run_program(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Tool {
        let dir = tempfile::Builder::new().prefix("keyferry-run-").tempdir().expect("a temporary folder");
        let out = File::create(dir.path().join("out")).expect("the output file opens");
        let child = Command::new(program)
            .args(args)
            .envs(env.iter().copied())
            .env("XDG_STATE_HOME", dir.path())
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second handle of the output"))
            .stderr(out)
            .spawn()
            .expect("keyferry starts");
        Tool { child, dir, words: args.iter().map(|a| a.to_string()).collect(), status: None }
    }

    /// `keyferry sync --source … --target …` and further options.
    pub fn sync(source: &Server, target: &Server, more: &[&str]) -> Tool {
        let (from, to) = (source.url(), target.url());
        let mut args = vec!["sync", "--source", &from, "--target", &to];
        args.extend_from_slice(more);
        Tool::run(&args)
    }

    /// A copy that must end well: `sync --once`, exit 0 within the limit.
    pub fn once(source: &Server, target: &Server, more: &[&str], limit: Duration) -> Tool {
        let mut args = vec!["--once"];
        args.extend_from_slice(more);
        let mut tool = Tool::sync(source, target, &args);
        tool.must_end(limit, 0);
        tool
    }

    /// All it has written so far, both streams in order.
    pub fn text(&self) -> String {
        let bytes = std::fs::read(self.dir.path().join("out")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn alive(&mut self) -> bool {
        if self.status.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            // A signal's end counts as a shell counts it.
            use std::os::unix::process::ExitStatusExt;
            let code = status.code().unwrap_or(128 + status.signal().unwrap_or(0));
            self.status = Some(code);
        }
        self.status.is_none()
    }

    /// Its exit code, waited for up to `limit`; panics with its last words after that.
    pub fn wait(&mut self, limit: Duration) -> i32 {
        let started = Instant::now();
        while self.alive() {
            if started.elapsed() > limit {
                panic!("{:?} did not end in {limit:?}: {}", self.words, self.tail());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.status.unwrap_or(-1)
    }

    /// Waits for its end and fails with its words if the exit code is another.
    pub fn must_end(&mut self, limit: Duration, code: i32) {
        let got = self.wait(limit);
        assert_eq!(got, code, "exit code of {:?}: {}", self.words, self.tail());
    }

    /// Fails with its words if it has ended.
    pub fn must_live(&mut self) {
        let alive = self.alive();
        assert!(alive, "{:?} ended with {:?}: {}", self.words, self.status, self.tail());
    }

    /// Waits until `part` stands in the output, letter case ignored.
    pub fn until_text(&mut self, part: &str, limit: Duration) {
        let part = part.to_lowercase();
        let what = format!("the words {part:?}");
        until(limit, &what, || {
            let there = self.text().to_lowercase().contains(&part);
            if !there {
                self.must_live();
            }
            there
        });
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// SIGTERM, then its end with exit code 0.
    pub fn stop(&mut self) {
        self.must_live();
        self.terminate();
        self.must_end(HALF_MINUTE, 0);
    }

    /// SIGSTOP: it does nothing until [`Tool::thaw`], and keeps its connections.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The last words, for a message.
    pub fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().rev().take(12).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if self.alive() {
            self.signal(Signal::CONT);
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("keyferry's last words: {}", self.tail());
        }
    }
}
