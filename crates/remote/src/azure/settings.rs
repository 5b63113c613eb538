//! The settings of Azure's blob storage, from the variables that Microsoft's tools and libraries read.
//!
//! A command reads them. The server of a mount gets the result, and fetches tokens by itself.

use crate::encoding::form;
use crate::environment::{
    Environment, SettingsError, absolute, check_header, flag, parse_url, private_url, value,
};
use crate::{Secret, Url};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The domain of accounts in the public cloud.
const DOMAIN: &str = "core.windows.net";
/// The server of tokens of the public cloud.
const AUTHORITY: &str = "https://login.microsoftonline.com";
/// The service of an instance's metadata.
const INSTANCE_METADATA: &str = "http://169.254.169.254";
/// The account and key of the emulator, Azurite, which everybody knows.
const EMULATOR: [&str; 3] = [
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "http://127.0.0.1:10000/devstoreaccount1",
];

/// How blobs are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AzureSettings {
    /// The account.
    pub account: String,
    /// The URL before the container, without a slash at its end.
    pub endpoint: String,
    /// The credentials of requests.
    pub credentials: AzureCredentials,
}

/// The credentials of requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AzureCredentials {
    /// Nothing: the user wants it so.
    Skipped,
    /// A signature by the key of the account.
    Key {
        /// The key, in base64.
        key: Secret,
        /// Where it is from, for messages.
        origin: String,
    },
    /// A shared access signature, in the query.
    Sas {
        /// The query, without a question mark.
        query: Secret,
        /// Where it is from, for messages.
        origin: String,
    },
    /// A token for an application, in exchange for its secret or for a token in a file.
    Application {
        /// The URL of the server of tokens.
        url: String,
        /// The application.
        client_id: String,
        /// Its proof.
        proof: Proof,
    },
    /// A token from a service of the machine; without an identity there, requests show nothing.
    Machine {
        /// The URL, with its query.
        url: String,
        /// The header that the service wants to see, and its value.
        header: (MachineHeader, Secret),
    },
}

/// The proof of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    /// A secret.
    Secret(Secret),
    /// A file with a token of Kubernetes, which is read again for each request, because its contents change.
    File(PathBuf),
}

/// The header that a service of the machine wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineHeader {
    /// `Metadata`, of instances.
    Metadata,
    /// `X-Identity-Header`, of App Service, Functions and containers.
    Identity,
}

impl AzureCredentials {
    /// Whose they are, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            AzureCredentials::Skipped => "nobody".to_string(),
            AzureCredentials::Key { origin, .. } => format!("the account's key of {origin}"),
            AzureCredentials::Sas { origin, .. } => format!("the shared access signature of {origin}"),
            AzureCredentials::Application { client_id, .. } => {
                format!("a token of the application '{client_id}'")
            }
            AzureCredentials::Machine { .. } => "a token of the machine's identity".to_string(),
        }
    }
}

/// The fields of a connection string.
#[derive(Default)]
struct Connection<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Connection<'a> {
    fn parse(text: &'a str) -> Self {
        Connection(text.split(';').filter_map(|field| field.trim().split_once('=')).collect())
    }

    fn get(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(key, value)| key.eq_ignore_ascii_case(name) && !value.is_empty());
        found.map(|(_, value)| value.to_string())
    }

    /// The account that it names, by its name or as a part of the endpoint.
    fn account(&self) -> Option<String> {
        self.get("AccountName").or_else(|| account_named_by(&self.get("BlobEndpoint")?))
    }
}

impl AzureSettings {
    /// Reads the environment.
    pub fn from_environment(env: Environment<'_>) -> Result<Self, SettingsError> {
        let text = env(CONNECTION).unwrap_or_default();
        let connection = Connection::parse(&text);
        let is_emulator = flag(env, "AZURE_STORAGE_USE_EMULATOR")?
            || connection
                .get("UseDevelopmentStorage")
                .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let emulator = |n: usize| is_emulator.then(|| EMULATOR[n].to_string());
        let first = |names: &[&str]| names.iter().find_map(|name| env(name));
        // A key or an endpoint of one account is of no use to another one.
        let of_connection = connection.account();
        let of_variables = first(&[ACCOUNT, "AZURE_STORAGE_ACCOUNT"]);
        let own_endpoint = first(&["AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_SERVICE_ENDPOINT"]);
        let named = of_variables.clone().or_else(|| account_named_by(own_endpoint.as_deref()?));
        let is_other = of_connection.is_some() && named.is_some() && of_connection != named;
        let endpoint = connection.get("BlobEndpoint").or_else(|| emulator(2));
        let endpoint = endpoint.or(own_endpoint.filter(|_| !is_other));
        let account = of_connection.or_else(|| emulator(0)).or(of_variables);
        let account = match (account, &endpoint) {
            (Some(account), _) => account,
            // The account is needed to sign, or to make an endpoint.
            (None, Some(endpoint)) => account_of(endpoint).to_string(),
            (None, None) => {
                let why =
                    "is not set: it names the account of az://, unless AZURE_STORAGE_CONNECTION_STRING does";
                return Err(SettingsError::Value { name: ACCOUNT.into(), why: why.into() });
            }
        };
        let is_account = (1..=63).contains(&account.len())
            && account.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !is_account {
            return Err(value(ACCOUNT, "an account has letters and digits"));
        }
        let endpoint = endpoint.unwrap_or_else(|| {
            let scheme = connection.get("DefaultEndpointsProtocol").unwrap_or_else(|| "https".into());
            let domain = connection.get("EndpointSuffix").unwrap_or_else(|| DOMAIN.into());
            format!("{scheme}://{account}.blob.{domain}")
        });
        let endpoint = endpoint.trim_end_matches('/').to_string();
        let is_private = parse_url(ENDPOINT, &endpoint)?.is_private();
        if endpoint.contains(['?', '#']) {
            return Err(value(ENDPOINT, "it has a query"));
        }
        let credentials = credentials(env, &connection, emulator(1), is_other)?;
        let is_bearer = matches!(
            credentials,
            AzureCredentials::Sas { .. }
                | AzureCredentials::Application { .. }
                | AzureCredentials::Machine { .. }
        );
        match (is_bearer && !is_private, credentials) {
            // A machine's identity was not asked for.
            (true, AzureCredentials::Machine { .. }) => {
                Ok(AzureSettings { account, endpoint, credentials: AzureCredentials::Skipped })
            }
            (true, _) => {
                Err(value(ENDPOINT, "tokens and shared access signatures are sent to https:// only"))
            }
            (false, credentials) => Ok(AzureSettings { account, endpoint, credentials }),
        }
    }
}

const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";
const ACCOUNT: &str = "AZURE_STORAGE_ACCOUNT_NAME";
const ENDPOINT: &str = "the endpoint of Azure's blob storage";

/// The credentials: what is most explicit first. Those of the connection string or the emulator exclude the variables with
/// a key or a signature, which may be of another account; so does a string that names another account than the variables
/// (`is_other`).
fn credentials(
    env: Environment<'_>,
    connection: &Connection<'_>,
    emulator_key: Option<String>,
    is_other: bool,
) -> Result<AzureCredentials, SettingsError> {
    if flag(env, "AZURE_SKIP_SIGNATURE")? {
        return Ok(AzureCredentials::Skipped);
    }
    let of_connection = |field: &str| connection.get(field).map(|text| (text, CONNECTION));
    let (mut key, mut sas) = (of_connection("AccountKey"), of_connection("SharedAccessSignature"));
    if key.is_none() && sas.is_none() {
        key = emulator_key.map(|key| (key, "the emulator"));
    }
    if key.is_none() && sas.is_none() && !is_other {
        let first = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((env(name)?, name)));
        key = first(["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"]);
        sas = first(["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"]);
    }
    if let Some((key, origin)) = key {
        if STANDARD.decode(&key).is_err() {
            return Err(value(&format!("the key of the account in {origin}"), "it is not base64"));
        }
        return Ok(AzureCredentials::Key { key: Secret(key), origin: origin.to_string() });
    }
    if let Some((sas, origin)) = sas {
        let query = sas.trim_start_matches('?').to_string();
        if !query.contains("sig=")
            || Url::parse(&format!("https://host/?{query}")).is_err()
            || query.contains('#')
        {
            return Err(value(
                origin,
                "it is no shared access signature: it has no 'sig=', or other characters than URLs",
            ));
        }
        return Ok(AzureCredentials::Sas { query: Secret(query), origin: origin.to_string() });
    }
    if let Some(application) = application(env)? {
        return Ok(application);
    }
    machine(env)
}

/// An application that is named by the variables of Microsoft's libraries.
fn application(env: Environment<'_>) -> Result<Option<AzureCredentials>, SettingsError> {
    let (Some(tenant), Some(client_id)) = (env("AZURE_TENANT_ID"), env("AZURE_CLIENT_ID")) else {
        return Ok(None);
    };
    let proof = match (env("AZURE_CLIENT_SECRET"), env("AZURE_FEDERATED_TOKEN_FILE")) {
        (Some(secret), _) => Proof::Secret(Secret(secret)),
        (None, Some(path)) => Proof::File(absolute(path)),
        (None, None) => return Ok(None),
    };
    let authority = env("AZURE_AUTHORITY_HOST").unwrap_or_else(|| AUTHORITY.into());
    let authority = match authority.contains("://") {
        true => authority.trim_end_matches('/').to_string(),
        false => format!("https://{}", authority.trim_end_matches('/')),
    };
    let is_tenant = tenant.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    if !is_tenant {
        return Err(value("AZURE_TENANT_ID", "it has other characters than tenants"));
    }
    let url = format!("{authority}/{tenant}/oauth2/v2.0/token");
    private_url("AZURE_AUTHORITY_HOST", &url)?;
    Ok(Some(AzureCredentials::Application { url, client_id, proof }))
}

/// The identity of the machine: that of App Service if it says so, otherwise of the instance.
fn machine(env: Environment<'_>) -> Result<AzureCredentials, SettingsError> {
    let resource = form(&[("resource", "https://storage.azure.com/")]);
    let client = env("AZURE_CLIENT_ID").map(|id| format!("&{}", form(&[("client_id", &id)])));
    let client = client.unwrap_or_default();
    let (name, url, header) = match (env("IDENTITY_ENDPOINT"), env("IDENTITY_HEADER")) {
        (Some(url), Some(header)) => {
            let url = format!("{url}?api-version=2019-08-01&{resource}{client}");
            ("IDENTITY_ENDPOINT", url, (MachineHeader::Identity, Secret(header)))
        }
        _ => {
            let host = env("AZURE_POD_IDENTITY_AUTHORITY_HOST").unwrap_or_else(|| INSTANCE_METADATA.into());
            let path = "metadata/identity/oauth2/token?api-version=2018-02-01";
            let url = format!("{}/{path}&{resource}{client}", host.trim_end_matches('/'));
            let header = (MachineHeader::Metadata, Secret("true".into()));
            ("AZURE_POD_IDENTITY_AUTHORITY_HOST", url, header)
        }
    };
    check_header("IDENTITY_HEADER", &header.1.0)?;
    parse_url(name, &url)?;
    Ok(AzureCredentials::Machine { url, header })
}

/// The account that an endpoint surely names. The first part of another domain says nothing about it.
fn account_named_by(endpoint: &str) -> Option<String> {
    let (_, rest) = endpoint.trim_end_matches('/').split_once("://")?;
    (rest.contains(".blob.") || rest.contains('/')).then(|| account_of(endpoint).to_string())
}

/// The account in the host of an endpoint, `https://ACCOUNT.blob...`, or in its path.
fn account_of(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    match rest.trim_end_matches('/').split_once('/') {
        Some((_, path)) => path.split('/').next().unwrap_or_default(),
        None => rest.split('.').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
