use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};

use super::*;

const BUFFER_BYTES: usize = 64 << 10;

fn data(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls");
    folder.join(name)
}

fn trusting(cacert: &str) -> TlsOptions {
    TlsOptions { cacert: Some(data(cacert)), ..TlsOptions::default() }
}

fn with_client_certificate(options: TlsOptions) -> TlsOptions {
    TlsOptions { cert: Some(data("client.pem")), key: Some(data("client.key")), ..options }
}

/// A server that wants a client certificate or not.
fn acceptor(client_ca: Option<&str>, tls13: bool) -> TlsAcceptor {
    let side = Side::Target;
    let provider = Arc::new(ring::default_provider());
    let versions: &[_] = if tls13 { &[&TLS13] } else { &[&TLS12] };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(versions).unwrap();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(roots(side, Some(&data(ca))).unwrap());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let certificates = read_certificates(side, &data("server.pem")).unwrap();
    let key = read_key(side, &data("server.key")).unwrap();
    let config = builder.with_single_cert(certificates, key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Connects to such a server and hears one byte of it; the error in words if that fails.
async fn hear(options: &TlsOptions, host: &str, acceptor: TlsAcceptor) -> Result<(), Error> {
    let (ours, theirs) = duplex(BUFFER_BYTES);
    let server = tokio::spawn(async move {
        if let Ok(mut stream) = acceptor.accept(theirs).await {
            let _ = stream.write_all(b"+").await;
            let _ = stream.shutdown().await;
        }
    });
    let connector = connector(Side::Source, options)?;
    let name = server_name(Side::Source, options, host)?;
    let heard = async {
        let mut stream = connector.connect(name, ours).await?;
        stream.read_u8().await
    };
    let heard = heard.await;
    let _ = server.await;
    match heard {
        Ok(_) => Ok(()),
        Err(error) => Err(explain(Side::Source, "h:1", options.cert.as_deref(), &error)
            .unwrap_or_else(|| panic!("not explained: {error:?}"))),
    }
}

async fn refusal(options: &TlsOptions, host: &str, acceptor: TlsAcceptor) -> String {
    match hear(options, host, acceptor).await {
        Ok(()) => panic!("accepted: {options:?} {host}"),
        Err(error) => format!("{error} | {}", error.hint().unwrap_or_default()),
    }
}

#[tokio::test]
async fn handshake_with_a_trusted_server_works() {
    for tls13 in [true, false] {
        for host in ["localhost", "127.0.0.1"] {
            let heard = hear(&trusting("ca.pem"), host, acceptor(None, tls13)).await;
            heard.unwrap_or_else(|e| panic!("{host}: {e}"));
        }
        let options = with_client_certificate(trusting("ca.pem"));
        let heard = hear(&options, "localhost", acceptor(Some("ca.pem"), tls13)).await;
        heard.unwrap_or_else(|e| panic!("{e}"));
    }
}

#[tokio::test]
async fn handshake_with_sni_or_insecure_takes_another_name() {
    let sni = TlsOptions { sni: Some("localhost".into()), ..trusting("ca.pem") };
    assert!(hear(&sni, "10.0.0.1", acceptor(None, true)).await.is_ok());
    let insecure = TlsOptions { insecure: true, ..TlsOptions::default() };
    for tls13 in [true, false] {
        let heard = hear(&insecure, "10.0.0.1", acceptor(None, tls13)).await;
        heard.unwrap_or_else(|e| panic!("{e}"));
    }
}

#[tokio::test]
async fn handshake_refused_says_whose_certificate_and_why() {
    for tls13 in [true, false] {
        let said = refusal(&trusting("other-ca.pem"), "localhost", acceptor(None, tls13)).await;
        assert!(said.starts_with("source h:1: its certificate (CN="), "{said}");
        assert!(said.contains("was issued by a CA that is not trusted"), "{said}");
        assert!(said.contains("--source-cacert"), "{said}");
        let said = refusal(&trusting("ca.pem"), "10.0.0.1", acceptor(None, tls13)).await;
        assert!(said.contains("for another name") && said.contains("10.0.0.1"), "{said}");
        assert!(said.contains("--source-sni"), "{said}");
        let said = refusal(&trusting("ca.pem"), "localhost", acceptor(Some("ca.pem"), tls13)).await;
        assert!(said.contains("client certificate"), "{said}");
        let options = with_client_certificate(trusting("ca.pem"));
        let said = refusal(&options, "localhost", acceptor(Some("other-ca.pem"), tls13)).await;
        assert!(said.contains("our client certificate") && said.contains("client.pem"), "{said}");
        assert!(said.contains("--source-cert"), "{said}");
    }
}

#[tokio::test]
async fn handshake_with_a_plain_server_says_so() {
    let (ours, mut theirs) = duplex(BUFFER_BYTES);
    theirs.write_all(b"-ERR unknown command\r\n").await.unwrap();
    let connector = connector(Side::Source, &trusting("ca.pem")).unwrap();
    let name = server_name(Side::Source, &TlsOptions::default(), "localhost").unwrap();
    let error = connector.connect(name, ours).await.unwrap_err();
    let said = explain(Side::Source, "h:1", None, &error).unwrap().to_string();
    assert_eq!(said, "source h:1: the server doesn't speak TLS on this port");
    assert!(explain(Side::Source, "h:1", None, &io::ErrorKind::UnexpectedEof.into()).is_none());
}

#[test]
fn connector_with_wrong_files_names_side_file_and_fault() {
    let said = |options: TlsOptions| match connector(Side::Target, &options) {
        Ok(_) => panic!("taken: {options:?}"),
        Err(error) => error.to_string(),
    };
    let text = said(trusting("nowhere.pem"));
    assert!(text.starts_with("target: can't read certificate ") && text.contains("nowhere.pem"), "{text}");
    let text = said(trusting("README.md"));
    assert!(text.contains("README.md holds no certificate in PEM form"), "{text}");
    let text = said(trusting("client.key"));
    assert!(text.contains("client.key holds no certificate"), "{text}");
    let swapped = TlsOptions { key: Some(data("server.key")), ..with_client_certificate(trusting("ca.pem")) };
    let text = said(swapped);
    assert!(text.contains("client.pem and its key don't work"), "{text}");
    let no_key = TlsOptions { key: Some(data("client.pem")), ..with_client_certificate(trusting("ca.pem")) };
    assert!(said(no_key).contains("client.pem holds no private key"));
}

#[test]
fn server_name_of_hosts_addresses_and_nonsense() {
    let options = TlsOptions::default();
    for host in ["h", "a.b", "127.0.0.1", "::1", "fe80::1%eth0"] {
        assert!(server_name(Side::Source, &options, host).is_ok(), "{host}");
    }
    let error = server_name(Side::Source, &options, "a b").unwrap_err();
    assert_eq!(error.to_string(), "source: 'a b' can't be a certificate's name");
}

#[test]
fn tls_record_is_told_from_replies() {
    assert!(is_tls_record(&[0x15, 3, 3, 0, 2]));
    assert!(!is_tls_record(b"+PONG\r\n") && !is_tls_record(b""));
}
