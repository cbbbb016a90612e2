//! Certificates for the TLS tests, made with the openssl program.

use crate::server::{FAST, Server};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A CA, another that signed nothing, a server's certificate for 127.0.0.1 and a client's.
pub struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    pub fn new() -> Certificates {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for ca in ["ca", "other-ca"] {
            openssl(
                dir.path(),
                &format!(
                    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=keyferry-{ca} \
                     -addext basicConstraints=critical,CA:TRUE -keyout {ca}.key -out {ca}.crt"
                ),
            );
        }
        let leaves = [
            ("server", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            ("client", "extendedKeyUsage=clientAuth"),
            ("elsewhere", "subjectAltName=DNS:other.example"),
        ];
        for (name, extension) in leaves {
            let text = format!("basicConstraints=CA:FALSE\n{extension}\n");
            std::fs::write(dir.path().join("ext"), text).expect("the extensions are written");
            openssl(
                dir.path(),
                &format!(
                    "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
                ),
            );
            openssl(
                dir.path(),
                &format!(
                    "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.crt"
                ),
            );
        }
        Certificates { dir }
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub fn text(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    /// A server that also speaks TLS, on `port2`, with the certificate `cert` (`server`, `elsewhere`).
    pub fn server(&self, name: &str, cert: &str, asks_client: bool) -> Server {
        let lines = self.lines(cert, asks_client);
        let mut config: Vec<&str> = FAST.to_vec();
        config.extend(lines.iter().map(String::as_str));
        Server::with(name, &config)
    }

    /// A sentinel that speaks TLS as well, with others over TLS only.
    pub fn sentinel(&self, name: &str, monitor: &str) -> Server {
        let lines = self.lines("server", false);
        let mut config = vec![monitor, "tls-replication yes"];
        config.extend(lines.iter().map(String::as_str));
        Server::with(name, &config)
    }

    /// The config lines of such a server.
    pub fn lines(&self, cert: &str, asks_client: bool) -> Vec<String> {
        let auth = if asks_client { "yes" } else { "no" };
        vec![
            "tls-port {port2}".to_string(),
            format!("tls-cert-file {}", self.text(&format!("{cert}.crt"))),
            format!("tls-key-file {}", self.text(&format!("{cert}.key"))),
            format!("tls-ca-cert-file {}", self.text("ca.crt")),
            format!("tls-auth-clients {auth}"),
        ]
    }
}

/// The TLS address of a server that [`Certificates::server`] started.
pub fn tls_url(server: &Server) -> String {
    format!("rediss://127.0.0.1:{}", server.port2)
}

fn openssl(dir: &Path, words: &str) {
    let output = Command::new("openssl")
        .args(words.split_whitespace())
        .current_dir(dir)
        .output()
        .expect("openssl runs (apt-get install openssl)");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {words}: {error}");
}
