//! Keys from services: of a container, of an instance (version 2, with a session token), and of AWS for a web identity.

use super::secret;
use super::settings::Keys;
use crate::answer::AttemptError;
use crate::environment::read_bounded;
use crate::renewed::Expiring;
use crate::retry::Deadline;
use crate::small::{Ask, Method, SmallClient, form};
use crate::xml::text_of_element;
use crate::{RemoteError, Secret, Url, time};
use serde::Deserialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// The longest answer, bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// The longest time of a request. The services are near: where one does not answer soon, there is none.
const LIMIT: Duration = Duration::from_secs(1);
/// The life of a session with the instance's metadata, seconds.
const SESSION_S: &str = "300";

/// A client for these services.
pub(super) struct MetadataClient {
    client: SmallClient,
    /// The longest time of a request.
    limit: Duration,
    /// Whether the instance has had keys: then that it does not answer does not mean that it has none.
    had_keys: AtomicBool,
}

/// The answer of the services.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KeysAnswer {
    access_key_id: String,
    secret_access_key: Secret,
    token: Option<Secret>,
    expiration: Option<String>,
}

impl MetadataClient {
    /// A client for a service of the machine or its network.
    pub(super) fn near(timeout: Duration, is_https: bool) -> Result<Self, RemoteError> {
        let client = SmallClient::without_proxy(timeout, is_https)?;
        Ok(MetadataClient { client, limit: LIMIT, had_keys: AtomicBool::new(false) })
    }

    /// A client for a service elsewhere, through the proxy of the environment.
    pub(super) fn far(timeout: Duration, is_https: bool) -> Result<Self, RemoteError> {
        let client = SmallClient::new(timeout, is_https)?;
        Ok(MetadataClient { client, limit: timeout, had_keys: AtomicBool::new(false) })
    }

    /// Asks the service of a container.
    pub(super) fn container(
        &self,
        url: &str,
        authorization: Option<&Secret>,
        authorization_file: Option<&Path>,
        deadline: &Deadline,
    ) -> Result<Expiring<Option<Keys>>, AttemptError> {
        let of_file = authorization_file.map(token_of_file).transpose()?;
        let headers = of_file.or_else(|| authorization.cloned()).map(|value| ("authorization", value));
        let body =
            self.get(url, headers, deadline)?.expect_ok("the service of the container's credentials")?;
        keys(&body, "the container")
    }

    /// Exchanges a web identity for keys. `role` is the name of the role, and a name for the session.
    pub(super) fn web_identity(
        &self,
        url: &str,
        role: [&str; 2],
        token_file: &Path,
        deadline: &Deadline,
    ) -> Result<Expiring<Option<Keys>>, AttemptError> {
        let Secret(token) = token_of_file(token_file)?;
        let form = form(&[
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", role[0]),
            ("RoleSessionName", role[1]),
            ("WebIdentityToken", &token),
        ]);
        let url = parse(url)?;
        let (method, limit) = (Method::Post(&form), self.limit);
        let ask = Ask { method, url: &url, headers: Vec::new(), max_bytes: MAX_ANSWER_BYTES, limit };
        let body = self.client.ask(&ask, deadline)?.expect_ok("the service of web identities")?;
        let xml = String::from_utf8_lossy(&body);
        let find = |name: &str| text_of_element(&xml, name).map(String::from);
        let answer =
            find("AccessKeyId").zip(find("SecretAccessKey")).map(|(access_key_id, secret)| KeysAnswer {
                access_key_id,
                secret_access_key: Secret(secret),
                token: find("SessionToken").map(Secret),
                expiration: find("Expiration"),
            });
        checked(answer, "the web identity")
    }

    /// Asks the metadata of an instance. No keys if there is no such service, or no role.
    pub(super) fn instance(
        &self,
        url: &str,
        deadline: &Deadline,
    ) -> Result<Expiring<Option<Keys>>, AttemptError> {
        let result = self.instance_keys(url, deadline);
        let had_keys = self.had_keys.load(Ordering::Relaxed);
        match &result {
            Ok(Expiring { value: Some(_), .. }) => self.had_keys.store(true, Ordering::Relaxed),
            Ok(_) if had_keys => {
                let what = "the instance has no role any more".to_string();
                return Err(AttemptError::Permanent(RemoteError::Denied { status: 403, what }));
            }
            // A service that answers is there, and may be busy.
            Err(AttemptError::Transient { error: RemoteError::Denied { .. }, .. }) => {}
            Err(_) if !had_keys => return Ok(Expiring { value: None, valid_until: None }),
            _ => {}
        }
        result
    }

    fn instance_keys(&self, url: &str, deadline: &Deadline) -> Result<Expiring<Option<Keys>>, AttemptError> {
        let whose = "the instance's metadata";
        let token_url = parse(&format!("{url}/latest/api/token"))?;
        let ask = Ask {
            method: Method::Put,
            url: &token_url,
            headers: vec![secret("x-aws-ec2-metadata-token-ttl-seconds", SESSION_S)],
            max_bytes: MAX_ANSWER_BYTES,
            limit: self.limit,
        };
        let session = text(self.client.ask(&ask, deadline)?.expect_ok(whose)?)?;
        let header = || Some(secret("x-aws-ec2-metadata-token", session.clone()));
        let roles = format!("{url}/latest/meta-data/iam/security-credentials/");
        let answer = self.get(&roles, header(), deadline)?;
        if answer.status == 404 {
            return Ok(Expiring { value: None, valid_until: None });
        }
        let role = text(answer.expect_ok(whose)?)?;
        let body = self.get(&format!("{roles}{role}"), header(), deadline)?.expect_ok(whose)?;
        keys(&body, whose)
    }

    fn get(
        &self,
        url: &str,
        header: Option<(&'static str, Secret)>,
        deadline: &Deadline,
    ) -> Result<crate::small::Answer, AttemptError> {
        let url = parse(url)?;
        let headers = header.into_iter().collect();
        let ask =
            Ask { method: Method::Get, url: &url, headers, max_bytes: MAX_ANSWER_BYTES, limit: self.limit };
        self.client.ask(&ask, deadline)
    }
}

/// The token in a file, without the end of its line.
fn token_of_file(path: &Path) -> Result<Secret, AttemptError> {
    let shown = path.display();
    let fail =
        |what: String| AttemptError::Permanent(RemoteError::SetUp { what: format!("'{shown}': {what}") });
    let text = read_bounded(path).map_err(fail)?.ok_or_else(|| fail("there is no such file".to_string()))?;
    let token = text.trim();
    match !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        true => Ok(Secret(token.to_string())),
        false => Err(fail("it has no token".to_string())),
    }
}

fn parse(url: &str) -> Result<Url, AttemptError> {
    Url::parse(url).map_err(|e| AttemptError::refused(format!("the URL of a service of credentials: {e}")))
}

/// The first line of an answer, if it can be a header and a part of a URL.
fn text(body: Vec<u8>) -> Result<String, AttemptError> {
    let text = String::from_utf8_lossy(&body).lines().next().unwrap_or_default().trim().to_string();
    match !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(text),
        false => Err(AttemptError::refused("the instance's metadata are no text")),
    }
}

fn keys(body: &[u8], origin: &str) -> Result<Expiring<Option<Keys>>, AttemptError> {
    // The error of the parser could quote a secret.
    checked(serde_json::from_slice(body).ok(), origin)
}

/// The keys of an answer, if it has some that can be used.
fn checked(answer: Option<KeysAnswer>, origin: &str) -> Result<Expiring<Option<Keys>>, AttemptError> {
    let refused = |what: &str| AttemptError::refused(format!("{origin}: {what}"));
    let answer = answer.ok_or_else(|| refused("the answer has no credentials"))?;
    let valid_until = answer.expiration.as_deref().map(time::parse_rfc3339);
    let valid_until = match valid_until {
        Some(None) => return Err(refused("an Expiration that is no time")),
        Some(time) => time,
        None => None,
    };
    let token = answer.token.as_ref().map_or("", |token| token.0.as_str());
    if !(answer.access_key_id.bytes().chain(token.bytes())).all(|b| b.is_ascii_graphic()) {
        return Err(refused("keys with spaces or other characters"));
    }
    let keys = Keys {
        key_id: answer.access_key_id,
        secret_key: answer.secret_access_key,
        token: answer.token,
        expires_unix_s: valid_until.map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
        origin: origin.to_string(),
    };
    Ok(Expiring { value: Some(keys), valid_until })
}
