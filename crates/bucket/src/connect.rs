//! The store of a name: the builders of `object_store`, given the settings, credentials and agents of `pagefold-remote`.

use crate::error::BucketError;
use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::aws::{AmazonS3Builder, AwsCredential};
use object_store::azure::{AzureAccessKey, AzureCredential, MicrosoftAzureBuilder};
use object_store::client::{
    CredentialProvider, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, StaticCredentialProvider,
};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::list::PaginatedListStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use pagefold_remote::azure::AzureCredentials;
use pagefold_remote::gcs::GcsCredentials;
use pagefold_remote::logins::{Credentials, Login};
use pagefold_remote::s3::KeySource;
use pagefold_remote::stores::{ObjectName, Store, StoreSettings};
use pagefold_remote::transport::{Transport, TransportFailure, http};
use pagefold_remote::{RemoteError, Secret};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// The interfaces of a store that are used here.
pub struct Connected {
    pub store: Arc<dyn ObjectStore>,
    /// The same store, which sends each request once: its caller has to know of each answer.
    pub once: Arc<dyn ObjectStore>,
    /// Lists by a prefix that need not end at a slash.
    pub lister: Arc<dyn PaginatedListStore>,
}

/// Makes the store of the bucket of `name`. Sends nothing. `timeout` is the longest time of a request and of its repetitions.
pub fn connect(
    name: &ObjectName,
    settings: &StoreSettings,
    timeout: Duration,
) -> Result<Connected, BucketError> {
    let set_up = |e: RemoteError| BucketError::SetUp { what: e.to_string() };
    let unread = || BucketError::SetUp { what: format!("{name}: the settings of its store were not read") };
    let login = Arc::new(Login::new(name, settings, timeout).map_err(set_up)?);
    let retry = RetryConfig { backoff: BackoffConfig::default(), max_retries: 10, retry_timeout: timeout };
    let never = RetryConfig { max_retries: 0, ..retry.clone() };
    let options = ClientOptions::new().with_allow_http(true);
    match name.store() {
        Store::S3 => {
            let settings = settings.s3.as_ref().ok_or_else(unread)?;
            let url = settings.bucket_url(name.bucket(), &settings.region);
            let url = url.map_err(|e| BucketError::SetUp { what: format!("{name}: {e}") })?;
            let is_signed = !matches!(settings.keys, KeySource::Nothing | KeySource::Skipped);
            let builder = AmazonS3Builder::new()
                .with_http_connector(Connector::new(&url, timeout, None).map_err(set_up)?)
                .with_bucket_name(name.bucket())
                .with_region(&settings.region)
                // The URL has the bucket, in its host or in its path.
                .with_endpoint(url)
                .with_virtual_hosted_style_request(true)
                .with_request_payer(settings.pays_requests)
                .with_skip_signature(!is_signed)
                .with_disable_tagging(true)
                // Many stores that speak S3's protocol lack the deletion of many objects by one request.
                .with_config(object_store::aws::AmazonS3ConfigKey::DisableBulkDelete, "true")
                .with_credentials(Arc::new(Provider::<AwsCredential>::new(login)))
                .with_client_options(options);
            let once = builder.clone().with_retry(never).build()?;
            Ok(connected(builder.with_retry(retry).build()?, once))
        }
        Store::Azure => {
            let settings = settings.azure.as_ref().ok_or_else(unread)?;
            let builder = MicrosoftAzureBuilder::new()
                .with_http_connector(Connector::new(&settings.endpoint, timeout, None).map_err(set_up)?)
                .with_account(&settings.account)
                .with_container_name(name.bucket())
                .with_endpoint(settings.endpoint.clone())
                .with_skip_signature(matches!(settings.credentials, AzureCredentials::Skipped))
                .with_disable_tagging(true)
                .with_credentials(Arc::new(Provider::<AzureCredential>::new(login)))
                .with_client_options(options);
            let once = builder.clone().with_retry(never).build()?;
            Ok(connected(builder.with_retry(retry).build()?, once))
        }
        Store::Gcs => {
            let settings = settings.gcs.as_ref().ok_or_else(unread)?;
            let is_bare = matches!(settings.credentials, GcsCredentials::Nothing | GcsCredentials::Skipped);
            let payer = settings.payer.as_deref().filter(|_| !is_bare);
            let builder = GoogleCloudStorageBuilder::new()
                .with_http_connector(Connector::new(&settings.endpoint, timeout, payer).map_err(set_up)?)
                .with_bucket_name(name.bucket())
                .with_base_url(&settings.endpoint)
                .with_skip_signature(is_bare)
                .with_credentials(match is_bare {
                    // The library sends a token with a write in any case; emulators take any.
                    true => Arc::new(StaticCredentialProvider::new(GcpCredential { bearer: "none".into() })),
                    false => Arc::new(Provider::<GcpCredential>::new(login)),
                })
                .with_client_options(options);
            let once = builder.clone().with_retry(never).build()?;
            Ok(connected(builder.with_retry(retry).build()?, once))
        }
        Store::Oci => Err(unread()),
    }
}

fn connected<S: ObjectStore + PaginatedListStore>(store: S, once: S) -> Connected {
    let store = Arc::new(store);
    Connected { store: store.clone(), once: Arc::new(once), lister: store }
}

/// The credentials of a login, in the form `T` of a store.
struct Provider<T> {
    login: Arc<Login>,
    form: PhantomData<fn() -> T>,
}

impl<T> Provider<T> {
    fn new(login: Arc<Login>) -> Self {
        Provider { login, form: PhantomData }
    }
}

impl<T> fmt::Debug for Provider<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

#[async_trait]
impl<T: TryFrom<Wrapped, Error = String> + Send + Sync + 'static> CredentialProvider for Provider<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        let login = self.login.clone();
        let failed = |what: String| object_store::Error::Generic { store: "login", source: what.into() };
        let credentials = tokio::task::spawn_blocking(move || login.get()).await?;
        let credentials = credentials.map_err(|e| failed(e.to_string()))?;
        T::try_from(Wrapped(credentials)).map(Arc::new).map_err(failed)
    }
}

/// Credentials that are to become those of a store.
struct Wrapped(Credentials);

/// The message for a user without credentials. A machine without a role has none.
const NONE: &str = "no credentials were found, and a bucket is written by its users only; docs/image/servers.md names the variables";

impl TryFrom<Wrapped> for AwsCredential {
    type Error = String;

    fn try_from(Wrapped(credentials): Wrapped) -> Result<Self, String> {
        match credentials {
            Credentials::Keys(keys) => Ok(AwsCredential {
                key_id: keys.key_id,
                secret_key: keys.secret_key.0,
                token: keys.token.map(|Secret(token)| token),
            }),
            _ => Err(NONE.to_string()),
        }
    }
}

impl TryFrom<Wrapped> for AzureCredential {
    type Error = String;

    fn try_from(Wrapped(credentials): Wrapped) -> Result<Self, String> {
        match credentials {
            Credentials::Token(Secret(token)) => Ok(AzureCredential::BearerToken(token)),
            Credentials::AccountKey(Secret(key)) => {
                let key = AzureAccessKey::try_new(&key).map_err(|_| "the account's key is not base64")?;
                Ok(AzureCredential::AccessKey(key))
            }
            Credentials::Sas(Secret(query)) => {
                let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                let decoded = pairs.map(|(name, value)| (name.to_string(), decoded(value)));
                Ok(AzureCredential::SASToken(decoded.collect()))
            }
            _ => Err(NONE.to_string()),
        }
    }
}

impl TryFrom<Wrapped> for GcpCredential {
    type Error = String;

    fn try_from(Wrapped(credentials): Wrapped) -> Result<Self, String> {
        match credentials {
            Credentials::Token(Secret(bearer)) => Ok(GcpCredential { bearer }),
            _ => Err(NONE.to_string()),
        }
    }
}

/// A value of a query without its encoding; the library encodes it again.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match hex.filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends the requests of `object_store` by the agents of `pagefold-remote`.
#[derive(Clone)]
struct Connector {
    transport: Arc<Transport>,
    /// The project of Google that pays.
    payer: Option<http::HeaderValue>,
}

impl Connector {
    fn new(url: &str, timeout: Duration, payer: Option<&str>) -> Result<Self, RemoteError> {
        let payer = payer.map(http::HeaderValue::from_str).transpose();
        let payer = payer.map_err(|e| RemoteError::SetUp { what: format!("the project that pays: {e}") })?;
        Ok(Connector { transport: Arc::new(Transport::new(url, timeout)?), payer })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        if let Some(payer) = &self.payer {
            head.headers.insert("x-goog-user-project", payer.clone());
        }
        let transport = self.transport.clone();
        let sent = tokio::task::spawn_blocking(move || transport.send(head, &body)).await;
        let answer = sent.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        let answer = answer.map_err(|e| {
            let kind = match e.kind {
                TransportFailure::NoConnection => HttpErrorKind::Connect,
                TransportFailure::Timeout => HttpErrorKind::Timeout,
                TransportFailure::Broken => HttpErrorKind::Interrupted,
                TransportFailure::Permanent => HttpErrorKind::Unknown,
            };
            HttpError::new(kind, e.error)
        })?;
        Ok(answer.map(HttpResponseBody::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_queries_are_decoded_once() {
        assert_eq!(decoded("a%2Fb%3d+c%25zz%"), "a/b=+c%zz%");
    }

    #[test]
    fn credentials_become_those_of_the_store_or_an_error() {
        let token = || Wrapped(Credentials::Token(Secret("t".into())));
        assert!(GcpCredential::try_from(token()).is_ok() && AzureCredential::try_from(token()).is_ok());
        assert_eq!(AwsCredential::try_from(token()).unwrap_err(), NONE);
        assert_eq!(GcpCredential::try_from(Wrapped(Credentials::Nothing)).unwrap_err(), NONE);
        let sas = Wrapped(Credentials::Sas(Secret("sv=1&sig=a%2Bb".into())));
        let Ok(AzureCredential::SASToken(pairs)) = AzureCredential::try_from(sas) else { panic!("no pairs") };
        assert_eq!(pairs[1], ("sig".to_string(), "a+b".to_string()));
    }
}
