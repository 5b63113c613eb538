//! Keys from services: of a container, of an instance (version 2, with a session token), and of AWS for a web identity.

use super::settings::{Keys, KeysAnswer};
use crate::answer::AttemptError;
use crate::encoding::form;
use crate::environment::token_of_file;
use crate::renewed::Expiring;
use crate::retry::Deadline;
use crate::small::{Answer, MAX_CREDENTIALS_BYTES, Method, SmallClient};
use crate::xml::text_of_element;
use crate::{RemoteError, Secret, Url};
use std::path::Path;
use std::time::Duration;

/// The longest time of a request. The services are near: where one does not answer soon, there is none.
const LIMIT: Duration = Duration::from_secs(1);
/// The life of a session with the instance's metadata, seconds.
const SESSION_S: &str = "300";

/// Keys, as they are kept until they expire.
type ExpiringKeys = Expiring<Option<Keys>>;

/// A client for these services.
pub(super) struct MetadataClient(SmallClient);

impl MetadataClient {
    /// A client for a service of the machine or its network.
    pub(super) fn near(timeout: Duration, url: &str) -> Result<Self, RemoteError> {
        SmallClient::near(timeout, &service(url)?, LIMIT).map(MetadataClient)
    }

    /// A client for a service elsewhere, through the proxy of the environment.
    pub(super) fn far(timeout: Duration, url: &str) -> Result<Self, RemoteError> {
        SmallClient::far(timeout, &service(url)?, MAX_CREDENTIALS_BYTES).map(MetadataClient)
    }

    /// Asks the service of a container.
    pub(super) fn container(
        &self,
        url: &str,
        authorization: Option<&Secret>,
        authorization_file: Option<&Path>,
        deadline: &Deadline,
    ) -> Result<ExpiringKeys, AttemptError> {
        let of_file = authorization_file.map(|path| token_of_file(path, b" ")).transpose();
        let of_file = of_file.map_err(AttemptError::Permanent)?;
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
    ) -> Result<ExpiringKeys, AttemptError> {
        let Secret(token) = token_of_file(token_file, b" ").map_err(AttemptError::Permanent)?;
        let form = form(&[
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", role[0]),
            ("RoleSessionName", role[1]),
            ("WebIdentityToken", &token),
        ]);
        let answer = self.0.ask(Method::Post(&form), &parse(url)?, &[], deadline)?;
        let body = answer.expect_ok("the service of web identities")?;
        let xml = String::from_utf8_lossy(&body);
        let find = |name: &str| text_of_element(&xml, name).map(String::from);
        let answer =
            find("AccessKeyId").zip(find("SecretAccessKey")).map(|(access_key_id, secret)| KeysAnswer {
                version: None,
                access_key_id,
                secret_access_key: Secret(secret),
                session_token: find("SessionToken").map(Secret),
                token: None,
                expiration: find("Expiration"),
            });
        checked(answer, "the web identity")
    }

    /// Asks the metadata of an instance. No keys if there is no such service, or no role.
    pub(super) fn instance(&self, url: &str, deadline: &Deadline) -> Result<ExpiringKeys, AttemptError> {
        let had_keys = self.0.is_present();
        let keys = self.0.judge(self.instance_keys(url, deadline), false)?;
        if keys.value.is_none() && had_keys {
            let what = "the instance has no role any more".to_string();
            return Err(AttemptError::Permanent(RemoteError::Denied { status: 403, what }));
        }
        Ok(keys)
    }

    fn instance_keys(&self, url: &str, deadline: &Deadline) -> Result<ExpiringKeys, AttemptError> {
        let whose = "the instance's metadata";
        let token_url = parse(&format!("{url}/latest/api/token"))?;
        let ttl = [("x-aws-ec2-metadata-token-ttl-seconds", Secret(SESSION_S.into()))];
        let session = text(self.0.ask(Method::Put, &token_url, &ttl, deadline)?.expect_ok(whose)?)?;
        let header = || Some(("x-aws-ec2-metadata-token", Secret(session.clone())));
        let roles = format!("{url}/latest/meta-data/iam/security-credentials/");
        let answer = self.get(&roles, header(), deadline)?;
        if answer.head.status == 404 {
            return Ok(Expiring::none());
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
    ) -> Result<Answer, AttemptError> {
        self.0.ask(Method::Get, &parse(url)?, header.as_slice(), deadline)
    }
}

fn service(url: &str) -> Result<Url, RemoteError> {
    Url::parse(url).map_err(|e| RemoteError::SetUp { what: format!("the service of credentials: {e}") })
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

fn keys(body: &[u8], origin: &str) -> Result<ExpiringKeys, AttemptError> {
    // The error of the parser could quote a secret.
    checked(serde_json::from_slice(body).ok(), origin)
}

/// The keys of an answer, if it has some that can be used.
fn checked(answer: Option<KeysAnswer>, origin: &str) -> Result<ExpiringKeys, AttemptError> {
    let refused = |what: &str| AttemptError::refused(format!("{origin}: {what}"));
    let answer = answer.ok_or_else(|| refused("the answer has no credentials"))?;
    let keys = answer.into_keys(origin.to_string()).map_err(refused)?;
    if !keys.are_graphic() {
        return Err(refused("keys with spaces or other characters"));
    }
    let valid_until = keys.valid_until();
    Ok(Expiring { value: Some(keys), valid_until })
}
