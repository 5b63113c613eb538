//! The settings of S3, from where users of its tools have them: the environment, profiles, and services of the machine.
//!
//! A command reads them, and runs `credential_process` if a profile says so. The server of a mount gets the result, which
//! it can renew only from services of the machine.

use super::profile::Profile;
use crate::environment::{
    Environment, SettingsError, absolute, check_header, flag, parse_url, private_url, value,
};
use crate::object_name::ObjectName;
use crate::{Secret, Url, UrlError, program, time};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The region without any setting. A bucket that is elsewhere says so.
const DEFAULT_REGION: &str = "us-east-1";
/// The service of an instance's metadata.
const INSTANCE_METADATA: &str = "http://169.254.169.254";
/// The service of a container's credentials.
const CONTAINER_METADATA: &str = "http://169.254.170.2";
/// Hosts that containers' credentials may come from by `http`, besides the machine itself.
const CONTAINER_HOSTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

/// How a store of S3 is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Settings {
    /// The URL of the store; `None` for AWS.
    pub endpoint: Option<String>,
    /// The region of the bucket, as far as it is known.
    pub region: String,
    /// Whether the bucket is the first part of the path, and not of the host.
    pub is_path_style: bool,
    /// Whether the user pays for requests, and not the owner of the bucket.
    #[serde(default)]
    pub pays_requests: bool,
    /// Where the keys come from.
    pub keys: KeySource,
}

/// Where keys come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeySource {
    /// There are none: requests are not signed.
    Nothing,
    /// The user wants requests not to be signed.
    Skipped,
    /// These.
    Keys(Keys),
    /// A service of the container.
    Container {
        /// Its URL.
        url: String,
        /// The header `Authorization` for it.
        authorization: Option<Secret>,
        /// A file with that header, which is read again for each request, because its contents change.
        #[serde(default)]
        authorization_file: Option<PathBuf>,
    },
    /// The web identity that a file has, which a service of AWS exchanges for keys of a role.
    WebIdentity {
        /// The URL of that service.
        url: String,
        /// The role.
        role_arn: String,
        /// A name for the session.
        session_name: String,
        /// The file, which is read again for each request.
        token_file: PathBuf,
    },
    /// The metadata of the instance, version 2; without a role there, requests are not signed.
    Instance {
        /// The URL of the service.
        url: String,
    },
}

/// Keys that sign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// The name of the key.
    pub key_id: String,
    /// The key.
    pub secret_key: Secret,
    /// The session that the key belongs to.
    pub token: Option<Secret>,
    /// When they expire, seconds since 1970; `None`: never, or not known.
    pub expires_unix_s: Option<u64>,
    /// Where they are from, for messages.
    pub origin: String,
}

impl Keys {
    /// Whether the parts that become headers have only the printable characters of ASCII.
    pub(super) fn are_graphic(&self) -> bool {
        let token = self.token.as_ref().map_or("", |token| token.0.as_str());
        self.key_id.bytes().chain(token.bytes()).all(|b| b.is_ascii_graphic())
    }

    /// When they expire; `None`: never, or not known.
    pub(super) fn valid_until(&self) -> Option<SystemTime> {
        self.expires_unix_s.map(|s| UNIX_EPOCH + Duration::from_secs(s))
    }
}

/// Keys as programs and services of AWS write them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct KeysAnswer {
    /// Of programs only.
    pub(super) version: Option<u64>,
    pub(super) access_key_id: String,
    pub(super) secret_access_key: Secret,
    /// The session, as programs call it.
    pub(super) session_token: Option<Secret>,
    /// The session, as services call it.
    pub(super) token: Option<Secret>,
    pub(super) expiration: Option<String>,
}

impl KeysAnswer {
    /// The keys; fails if the time at which they expire is malformed.
    pub(super) fn into_keys(self, origin: String) -> Result<Keys, &'static str> {
        let expires = self.expiration.map(|text| time::parse_rfc3339(&text));
        let expires = expires.map(|time| time.ok_or("an Expiration that is no time")).transpose()?;
        Ok(Keys {
            key_id: self.access_key_id,
            secret_key: self.secret_access_key,
            token: self.session_token.or(self.token),
            expires_unix_s: expires.map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
            origin,
        })
    }
}

impl KeySource {
    /// The source, for messages: "the environment".
    pub(super) fn describe(&self) -> String {
        match self {
            KeySource::Nothing | KeySource::Skipped => "nobody".to_string(),
            KeySource::Keys(keys) => keys.origin.clone(),
            KeySource::Container { .. } => "the container".to_string(),
            KeySource::WebIdentity { .. } => "the web identity".to_string(),
            KeySource::Instance { .. } => "the instance's metadata".to_string(),
        }
    }
}

impl S3Settings {
    /// Reads the settings of the environment and of the profile that it names.
    pub fn from_environment(env: Environment<'_>) -> Result<Self, SettingsError> {
        let profile = Profile::from_environment(env)?;
        let setting = |names: &[&str], key: &str| {
            names.iter().find_map(|name| env(name)).or_else(|| profile.get(key).map(String::from))
        };
        let endpoint = setting(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], "endpoint_url");
        if let Some(endpoint) = &endpoint
            && parse_url("the endpoint of S3", endpoint)?.as_str().contains('?')
        {
            return Err(value("the endpoint of S3", "has a query"));
        }
        let region = setting(&["AWS_REGION", "AWS_DEFAULT_REGION"], "region");
        let region = region.unwrap_or_else(|| DEFAULT_REGION.to_string());
        if !is_region(&region) {
            return Err(value("the region of S3", "has other characters than a-z, 0-9 and '-'"));
        }
        let is_virtual = flag(env, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")?;
        let keys = keys(env, &profile, &region)?;
        Ok(S3Settings {
            is_path_style: endpoint.is_some() && !is_virtual,
            endpoint: endpoint.as_deref().map(without_default_port),
            region,
            pays_requests: pays_requests(env)?,
            keys,
        })
    }

    /// The URL of an object in this region.
    pub(super) fn url(&self, name: &ObjectName, region: &str) -> Result<Url, UrlError> {
        Url::parse(&format!("{}/{}", self.bucket_url(&name.bucket, region)?, name.encoded_key()))
    }

    /// The URL of a bucket in this region, without a slash at its end.
    pub fn bucket_url(&self, bucket: &str, region: &str) -> Result<String, UrlError> {
        Ok(match &self.endpoint {
            Some(endpoint) if self.is_path_style => format!("{endpoint}/{bucket}"),
            Some(endpoint) => {
                let (scheme, rest) = endpoint.split_once("://").ok_or(UrlError::Scheme)?;
                format!("{scheme}://{bucket}.{rest}")
            }
            None => {
                let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
                let host = format!("s3.{region}.amazonaws.com{suffix}");
                // A certificate for *.s3... has no names with more dots, and hosts have no capitals.
                match bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
                    true => format!("https://{bucket}.{host}"),
                    false => format!("https://{host}/{bucket}"),
                }
            }
        })
    }
}

/// Whether the user pays for requests: tools write `requester`, or a flag.
fn pays_requests(env: Environment<'_>) -> Result<bool, SettingsError> {
    match env("AWS_REQUEST_PAYER") {
        Some(who) if who.eq_ignore_ascii_case("requester") => Ok(true),
        _ => flag(env, "AWS_REQUEST_PAYER").map_err(|_| value("AWS_REQUEST_PAYER", "it is not 'requester'")),
    }
}

/// Whether a text may be the name of a region: it becomes part of a host.
pub(super) fn is_region(text: &str) -> bool {
    (1..=40).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// An endpoint without a slash at its end, and without the port that its scheme means: the header `Host`, which is
/// signed, may lack it.
fn without_default_port(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let port = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
    format!("{scheme}://{}{}", host.strip_suffix(port).unwrap_or(host), path.trim_end_matches('/'))
}

/// The keys, in the order in which AWS's tools look for them.
fn keys(env: Environment<'_>, profile: &Profile, region: &str) -> Result<KeySource, SettingsError> {
    if flag(env, "AWS_SKIP_SIGNATURE")? {
        return Ok(KeySource::Skipped);
    }
    match (env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")) {
        (Some(key_id), Some(secret_key)) => {
            let token = env("AWS_SESSION_TOKEN").map(Secret);
            let (secret_key, origin) = (Secret(secret_key), "the environment".to_string());
            return checked(Keys { key_id, secret_key, token, expires_unix_s: None, origin });
        }
        (None, None) => {}
        (Some(_), None) => return Err(value("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY is not set")),
        (None, Some(_)) => return Err(value("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID is not set")),
    }
    if let Some(identity) = web_identity(env, region)? {
        return Ok(identity);
    }
    if let Some(keys) = of_profile(profile)? {
        return checked(keys);
    }
    if let Some(container) = container(env)? {
        return Ok(container);
    }
    if flag(env, "AWS_EC2_METADATA_DISABLED")? {
        return Ok(KeySource::Nothing);
    }
    let url = env("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| INSTANCE_METADATA.to_string());
    let url = url.trim_end_matches('/').to_string();
    parse_url("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)?;
    Ok(KeySource::Instance { url })
}

/// Refuses keys that would end a header.
fn checked(keys: Keys) -> Result<KeySource, SettingsError> {
    match keys.are_graphic() && !keys.key_id.is_empty() {
        true => Ok(KeySource::Keys(keys)),
        false => Err(value(&format!("the key of {}", keys.origin), "it has spaces or other characters")),
    }
}

fn of_profile(profile: &Profile) -> Result<Option<Keys>, SettingsError> {
    let origin = format!("the profile '{}'", profile.name);
    let of = |key: &str| profile.get(key).map(String::from);
    if let (Some(key_id), Some(secret_key)) = (of("aws_access_key_id"), of("aws_secret_access_key")) {
        let (secret_key, token) = (Secret(secret_key), of("aws_session_token").map(Secret));
        return Ok(Some(Keys { key_id, secret_key, token, expires_unix_s: None, origin }));
    }
    if let Some(line) = profile.get("credential_process") {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        let output = program::run(command, b"", program::TIME_LIMIT).map_err(|e| e.to_string());
        let keys = output.and_then(|output| process_keys(&output, origin));
        return match keys {
            Ok(keys) => Ok(Some(keys)),
            Err(why) => Err(profile.error(format!("its credential_process: {why}"))),
        };
    }
    let other = ["role_arn", "sso_session", "sso_start_url", "web_identity_token_file", "login_session"];
    match other.iter().find(|key| profile.get(key).is_some()) {
        Some(key) => Err(profile.error(format!(
            "it has {key}, which needs AWS's own tool: make another profile with the line 'credential_process = aws configure \
             export-credentials --profile {}'",
            profile.name
        ))),
        None => Ok(None),
    }
}

fn process_keys(output: &[u8], origin: String) -> Result<Keys, String> {
    let no_json = || "its output is not the JSON of credentials".to_string();
    // The error of the parser could quote a secret.
    let output: KeysAnswer = serde_json::from_slice(output).map_err(|_| no_json())?;
    match output.version.ok_or_else(no_json)? {
        1 => {}
        version => return Err(format!("its output has version {version}, and 1 is known")),
    }
    let keys = output.into_keys(origin).map_err(|why| format!("its output has {why}"))?;
    match keys.valid_until() {
        Some(time) if time <= SystemTime::now() => Err("its credentials have expired already".to_string()),
        _ => Ok(keys),
    }
}

fn container(env: Environment<'_>) -> Result<Option<KeySource>, SettingsError> {
    const FULL: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    let url = match (env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), env(FULL)) {
        (Some(path), _) => format!("{CONTAINER_METADATA}{path}"),
        (None, Some(url)) => url,
        (None, None) => return Ok(None),
    };
    let parsed = parse_url(FULL, &url)?;
    let host = parsed.host();
    if !(parsed.is_private() || CONTAINER_HOSTS.contains(&host.as_str())) {
        return Err(value(FULL, "it is neither of https:// nor of this machine"));
    }
    let authorization_file = env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(absolute);
    let authorization = env("AWS_CONTAINER_AUTHORIZATION_TOKEN").filter(|_| authorization_file.is_none());
    check_header("AWS_CONTAINER_AUTHORIZATION_TOKEN", authorization.as_deref().unwrap_or_default())?;
    let authorization = authorization.map(Secret);
    Ok(Some(KeySource::Container { url, authorization, authorization_file }))
}

/// The identity that Kubernetes gives a container.
fn web_identity(env: Environment<'_>, region: &str) -> Result<Option<KeySource>, SettingsError> {
    let (Some(role_arn), Some(token_file)) = (env("AWS_ROLE_ARN"), env("AWS_WEB_IDENTITY_TOKEN_FILE")) else {
        return Ok(None);
    };
    let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
    let url =
        env("AWS_ENDPOINT_URL_STS").unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com{suffix}/"));
    private_url("AWS_ENDPOINT_URL_STS", &url)?;
    let session_name = env("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "pagefold".to_string());
    Ok(Some(KeySource::WebIdentity { url, role_arn, session_name, token_file: absolute(token_file) }))
}

#[cfg(test)]
mod tests;
