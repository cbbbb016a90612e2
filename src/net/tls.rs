//! TLS to a server: whom we trust, who we are, and what went wrong in words.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
};

use super::Side;
use super::certificate::Names;

/// What the user says of one side's TLS. The default: the system's CA store, no client certificate, the URL's host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsOptions {
    /// PEM file of the certificate authorities to trust instead of the system's.
    pub cacert: Option<PathBuf>,
    /// PEM file of our certificate and its chain; always together with `key`.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have, if not the URL's host.
    pub sni: Option<String>,
    /// Takes any certificate.
    pub insecure: bool,
}

impl TlsOptions {
    /// Whether the user said anything that only TLS can honour.
    pub fn is_default(&self) -> bool {
        *self == TlsOptions::default()
    }
}

/// Why TLS can't be set up or was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{side}: can't read {what} {}: {error}", path.display())]
    Read { side: Side, what: &'static str, path: PathBuf, error: io::Error },
    #[error("{side}: {} holds no {what} in PEM form: {why}", path.display())]
    Pem { side: Side, what: &'static str, path: PathBuf, why: String },
    #[error("{side}: the client certificate {} and its key don't work: {why}", path.display())]
    Client { side: Side, path: PathBuf, why: rustls::Error },
    #[error("{side}: the system has no CA certificates{why}")]
    NoSystemStore { side: Side, why: String },
    #[error("{side}: '{name}' can't be a certificate's name")]
    Name { side: Side, name: String },
    #[error("{side}: this build's TLS can't be set up: {why}")]
    Setup { side: Side, why: rustls::Error },
    #[error("{side}: the CA certificates can't be used: {why}")]
    NoVerifier { side: Side, why: String },
    #[error("{side} {address}: its certificate ({names}) was issued by a CA that is not trusted")]
    Untrusted { side: Side, address: String, names: Names },
    #[error("{side} {address}: its certificate ({names}) is for another name: {why}")]
    WrongName { side: Side, address: String, names: Names, why: String },
    #[error("{side} {address}: its certificate ({names}) was refused: {why}")]
    BadCertificate { side: Side, address: String, names: Names, why: String },
    #[error("{side} {address}: the server wants a client certificate, and none was given")]
    ClientCertificateRequired { side: Side, address: String },
    #[error("{side} {address}: the server refused our client certificate {} ({alert:?})", ours.display())]
    ClientCertificateRefused { side: Side, address: String, ours: PathBuf, alert: AlertDescription },
    #[error("{side} {address}: the server doesn't speak TLS on this port")]
    NotTls { side: Side, address: String },
    #[error("{side} {address}: the server speaks TLS on this port, and was spoken to without")]
    WantsTls { side: Side, address: String },
    #[error("{side} {address}: TLS failed: {why}")]
    Handshake { side: Side, address: String, why: String },
}

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Read { .. } => None,
            Error::Pem { .. } => Some("PEM files start with -----BEGIN ...-----".into()),
            Error::Client { side, .. } => {
                Some(format!("--{side}-key must be the unencrypted private key of --{side}-cert"))
            }
            Error::NoSystemStore { side, .. } => {
                Some(format!("install the package ca-certificates, or give --{side}-cacert FILE"))
            }
            Error::Name { side, .. } => Some(format!("give --{side}-sni a host name or an IP address")),
            Error::Setup { .. } | Error::NoVerifier { .. } => None,
            Error::Untrusted { side, .. } => Some(format!("give the CA that issued it with --{side}-cacert FILE")),
            Error::WrongName { side, .. } => {
                Some(format!("use that name in the URL, or give it with --{side}-sni NAME"))
            }
            Error::BadCertificate { side, .. } => {
                Some(format!("renew the server's certificate (--{side}-insecure would take any)"))
            }
            Error::ClientCertificateRequired { side, .. } | Error::ClientCertificateRefused { side, .. } => {
                Some(format!("give one that the server trusts with --{side}-cert FILE and --{side}-key FILE"))
            }
            Error::NotTls { .. } => Some("write redis:// instead of rediss://, or use the server's TLS port".into()),
            Error::WantsTls { .. } => {
                Some("write rediss:// instead of redis://, or use the server's port without TLS".into())
            }
            // TLS 1.2 servers say no more than "handshake failure" when they miss a client certificate.
            Error::Handshake { side, .. } => {
                Some(format!("if the server wants a client certificate: --{side}-cert FILE and --{side}-key FILE"))
            }
        }
    }
}

/// Makes one side's TLS client. Reads the files and the system's store, so make it once and keep it.
///
/// Warns in the log when the server's certificate isn't going to be checked.
///
/// # Errors
/// A file that can't be read or holds the wrong thing, a key that doesn't fit its certificate, no CA at all.
pub fn connector(side: Side, options: &TlsOptions) -> Result<TlsConnector, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|why| Error::Setup { side, why })?;
    let builder = if options.insecure {
        tracing::warn!(%side, "insecure: the server's certificate is not verified");
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
    } else {
        let roots = Arc::new(roots(side, options.cacert.as_deref())?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let verifier = verifier.map_err(|why| Error::NoVerifier { side, why: why.to_string() })?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Telling(verifier)))
    };
    let config = match (&options.cert, &options.key) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(read_certificates(side, cert)?, read_key(side, key)?)
            .map_err(|why| Error::Client { side, path: cert.clone(), why })?,
        _ => builder.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that the certificate of the server at `host` must have.
///
/// # Errors
/// `Name` if neither a host name nor an IP address.
pub fn server_name(side: Side, options: &TlsOptions, host: &str) -> Result<ServerName<'static>, Error> {
    let name = options.sni.as_deref().unwrap_or(host);
    // A certificate knows nothing of our interfaces.
    let name = name.split('%').next().unwrap_or(name);
    ServerName::try_from(name.to_owned()).map_err(|_| Error::Name { side, name: name.to_owned() })
}

/// Puts a failure of a TLS connection into words; `None` if TLS has nothing to do with it (a mere lost connection).
///
/// With TLS 1.3 a server's refusal of our certificate comes with the first read, after the handshake: ask then, too.
/// `ours`: the file of our certificate.
pub fn explain(side: Side, address: &str, ours: Option<&Path>, error: &io::Error) -> Option<Error> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let address = address.to_owned();
    Some(match inner {
        rustls::Error::InvalidCertificate(why) => explain_certificate(side, address, why),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            Error::ClientCertificateRequired { side, address }
        }
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied),
        ) => match ours {
            Some(ours) => Error::ClientCertificateRefused { side, address, ours: ours.to_owned(), alert: *alert },
            None => Error::ClientCertificateRequired { side, address },
        },
        rustls::Error::InvalidMessage(_) => Error::NotTls { side, address },
        why => Error::Handshake { side, address, why: why.to_string() },
    })
}

/// Whether bytes that came over a plain connection are a TLS record (an alert or a handshake): the port wants TLS.
pub fn is_tls_record(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 0x03, ..])
}

fn explain_certificate(side: Side, address: String, why: &CertificateError) -> Error {
    let judged = match why {
        CertificateError::Other(other) => other.0.downcast_ref::<Judged>(),
        _ => None,
    };
    let (names, why) = judged.map_or((Names::default(), why), |judged| (judged.names.clone(), &judged.why));
    match why {
        CertificateError::UnknownIssuer => Error::Untrusted { side, address, names },
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Error::WrongName { side, address, names, why: why.to_string() }
        }
        why => Error::BadCertificate { side, address, names, why: why.to_string() },
    }
}

fn roots(side: Side, cacert: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    if let Some(path) = cacert {
        for certificate in read_certificates(side, path)? {
            store.add(certificate).map_err(|why| Error::Pem {
                side,
                what: "usable CA certificate",
                path: path.to_owned(),
                why: why.to_string(),
            })?;
        }
        return Ok(store);
    }
    let found = rustls_native_certs::load_native_certs();
    // Systems carry a few certificates that no modern verifier takes; the others count.
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        let why = found.errors.first().map(|e| format!(": {e}"));
        return Err(Error::NoSystemStore { side, why: why.unwrap_or_default() });
    }
    Ok(store)
}

fn read_certificates(side: Side, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let what = "certificate";
    let bytes = read(side, what, path)?;
    let bad = |why: String| Error::Pem { side, what, path: path.to_owned(), why };
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(|e| bad(e.to_string()))?;
    if certificates.is_empty() {
        return Err(bad("no section CERTIFICATE".into()));
    }
    Ok(certificates)
}

fn read_key(side: Side, path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let what = "private key";
    let bytes = read(side, what, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| Error::Pem {
        side,
        what,
        path: path.to_owned(),
        why: e.to_string(),
    })
}

fn read(side: Side, what: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::Read { side, what, path: path.to_owned(), error })
}

/// Why a certificate was refused, and whose it was.
#[derive(Debug, thiserror::Error)]
#[error("{names}: {why}")]
struct Judged {
    names: Names,
    why: CertificateError,
}

/// Judges certificates as usual, and remembers with a refusal whose certificate it was.
#[derive(Debug)]
struct Telling(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Telling {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: rustls_pki_types::UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verified.map_err(|error| match error {
            rustls::Error::InvalidCertificate(why) => {
                let judged = Judged { names: Names::of(end_entity), why };
                rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(judged))))
            }
            error => error,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Takes every certificate, but still checks that the server holds its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls_pki_types::UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
