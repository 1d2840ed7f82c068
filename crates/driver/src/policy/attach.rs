//! `[attach]` of the policy file: rules on attaching processes.
//!
//! `deny` comes before `allow`, and both before `default`. All keys of an entry have to hold. Facts come from the kernel;
//! tenants come from the policy itself.
use super::glob::Glob;
use super::{list, DEFAULT_TENANT};
use crate::identity::NamespaceId;
use crate::process::namespace_of_file;
use crate::refusal::Refusal;
use crate::standing::{Place, Standing};
use serde::Deserialize;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use toml::Spanned;

/// Most entries of one list.
const ENTRIES_MAX: usize = 1024;
/// The word for the host's network namespace.
const HOST: &str = "host";

/// See the module. By default processes of containers, of root, and of the driver's user and group may attach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attach {
    /// Rule for processes that no entry names.
    pub default: Otherwise,
    /// Processes that may attach.
    pub allow: Vec<Entry>,
    /// Processes that may not, whatever the other list says.
    pub deny: Vec<Entry>,
}

/// Processes that may attach where no entry names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// Processes of containers, of the host's root, and of the driver's user and group.
    #[default]
    Containers,
    /// All processes that can open the socket.
    Anyone,
    /// No processes.
    Nobody,
}

/// Set of processes with common properties. At least one condition is present.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Control groups.
    pub cgroup: Option<Glob>,
    /// Network namespace.
    pub namespace: Option<Namespace>,
    /// Users.
    pub uid: Option<RangeInclusive<u32>>,
    /// Tenant.
    pub tenant: Option<String>,
}

/// A network namespace that an entry names.
#[derive(Clone, Debug, PartialEq)]
pub enum Namespace {
    /// The host's namespace.
    Host,
    /// The namespace of a file.
    File(PathBuf),
}

/// A process that attaches.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// The process's place, such as a container or the host.
    pub place: Place,
    /// The process's network namespace.
    pub namespace: NamespaceId,
    /// The process's user.
    pub uid: u32,
    /// The process's control group.
    pub cgroup: Option<&'a str>,
    /// The process's tenant.
    pub tenant: &'a str,
}

impl Attach {
    /// Tells whether a process may attach.
    ///
    /// # Errors
    /// The reason why not.
    pub fn decide(&self, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        let named = |list: &[Entry]| list.iter().any(|entry| entry.holds(newcomer));
        if named(&self.deny) {
            return Err(Refusal::Denied);
        }
        if named(&self.allow) {
            return Ok(());
        }
        match (self.default, newcomer.place.standing) {
            (Otherwise::Anyone, _) => Ok(()),
            (Otherwise::Nobody, _) => Err(Refusal::NotNamed),
            (Otherwise::Containers, Standing::Trusted | Standing::Contained) => Ok(()),
            (Otherwise::Containers, Standing::UsersNamespace) => Err(Refusal::UsersNamespace),
            (Otherwise::Containers, Standing::Host) => Err(Refusal::Host),
        }
    }
}

impl Entry {
    fn holds(&self, newcomer: &Newcomer<'_>) -> bool {
        let Self { cgroup, namespace, uid, tenant } = self;
        // Files last: looking at one takes a system call.
        tenant.as_ref().is_none_or(|tenant| tenant == newcomer.tenant)
            && uid.as_ref().is_none_or(|uid| uid.contains(&newcomer.uid))
            && cgroup.as_ref().is_none_or(|glob| newcomer.cgroup.is_some_and(|path| glob.holds(path)))
            && namespace.as_ref().is_none_or(|namespace| match namespace {
                Namespace::Host => newcomer.place.at_host,
                Namespace::File(path) => namespace_of_file(path).is_ok_and(|id| id == newcomer.namespace),
            })
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AttachTable {
    default: Otherwise,
    allow: Vec<Spanned<EntryTable>>,
    deny: Vec<Spanned<EntryTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryTable {
    cgroup: Option<String>,
    namespace: Option<String>,
    uid: Option<Users>,
    tenant: Option<String>,
}

/// A user, or a range of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a user's number was expected, or a range like \"1000-1999\"")]
enum Users {
    One(u32),
    Text(String),
}

impl AttachTable {
    /// Checks the section, in a policy with these tenants.
    ///
    /// # Errors
    /// The place of the fault, and its remedy.
    pub(super) fn check(self, is_tenant: impl Fn(&str) -> bool) -> Result<Attach, (usize, String)> {
        let entries = |key: &str, tables: Vec<Spanned<EntryTable>>| {
            if let Some(table) = tables.get(ENTRIES_MAX) {
                let why =
                    format!("attach.{key}: more than {ENTRIES_MAX} entries; join some by ranges or patterns");
                return Err((table.span().start, why));
            }
            let entry = |table: Spanned<EntryTable>| {
                let start = table.span().start;
                table.into_inner().check(&is_tenant).map_err(|why| (start, format!("attach.{key}: {why}")))
            };
            tables.into_iter().map(entry).collect::<Result<Vec<_>, _>>()
        };
        Ok(Attach {
            default: self.default,
            allow: entries("allow", self.allow)?,
            deny: entries("deny", self.deny)?,
        })
    }
}

impl EntryTable {
    fn check(self, is_tenant: impl Fn(&str) -> bool) -> Result<Entry, String> {
        let Self { cgroup, namespace, uid, tenant } = self;
        if cgroup.is_none() && namespace.is_none() && uid.is_none() && tenant.is_none() {
            return Err("an entry without conditions names nobody; add cgroup, namespace, uid or tenant, or set default".into());
        }
        if let Some(name) = tenant.as_ref().filter(|name| *name != DEFAULT_TENANT && !is_tenant(name)) {
            return Err(format!("'{name}' is no tenant; add [[tenant]] name = \"{name}\""));
        }
        let namespace = namespace.map(|text| match PathBuf::from(&text) {
            _ if text == HOST => Ok(Namespace::Host),
            path if path.is_absolute() => Ok(Namespace::File(path)),
            _ => Err(format!(
                "namespace \"{text}\" is no absolute path; write one like \"/run/netns/red\", or \"{HOST}\""
            )),
        });
        Ok(Entry {
            cgroup: cgroup.map(|text| Glob::parse(&text)).transpose()?,
            namespace: namespace.transpose()?,
            uid: uid.map(Users::range).transpose()?,
            tenant,
        })
    }
}

impl Users {
    fn range(self) -> Result<RangeInclusive<u32>, String> {
        let text = match self {
            Self::One(uid) => return Ok(uid..=uid),
            Self::Text(text) => text,
        };
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
            _ => Err(format!("uid \"{text}\" is no user; write a number, or a range like \"1000-1999\"")),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = Vec::new();
        said.extend(self.cgroup.as_ref().map(|glob| format!("cgroup {}", glob.as_str())));
        said.extend(self.namespace.as_ref().map(|namespace| match namespace {
            Namespace::Host => "namespace of the host".to_owned(),
            Namespace::File(path) => format!("namespace {}", path.display()),
        }));
        said.extend(self.uid.as_ref().map(|uid| match (uid.start(), uid.end()) {
            (first, last) if first == last => format!("uid {first}"),
            (first, last) => format!("uid {first}-{last}"),
        }));
        said.extend(self.tenant.as_ref().map(|name| format!("tenant {name}")));
        f.write_str(&list(said))
    }
}

/// Writes a line for each entry, and one for the default.
impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, entries) in [("deny", &self.deny), ("allow", &self.allow)] {
            for entry in entries {
                writeln!(f, "attach: {what} {entry}")?;
            }
        }
        f.write_str(match self.default {
            Otherwise::Containers => "attach, otherwise: containers, root, and the driver's user and group",
            Otherwise::Anyone => "attach, otherwise: anyone who can open the socket",
            Otherwise::Nobody => "attach, otherwise: nobody",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::*;
    use proptest::prelude::*;

    fn newcomer<'a>(standing: Standing, uid: u32, cgroup: &'a str, tenant: &'a str) -> Newcomer<'a> {
        let place = Place { standing, at_host: standing == Standing::Host };
        Newcomer { place, namespace: NamespaceId::NONE, uid, cgroup: Some(cgroup), tenant }
    }

    #[test]
    fn lists_come_before_the_default_and_denials_before_both() {
        let policy = Policy::parse(
            "[[tenant]]\nname = \"red\"\n[attach]\n\
             allow = [{ uid = \"1000-1999\", namespace = \"host\" }, { cgroup = \"/user.slice/**/libpod-*.scope\" }]\n\
             deny = [{ tenant = \"red\", uid = 1005 }, { cgroup = \"/bad\" }]",
        )
        .unwrap();
        use Standing::{Contained, Host, Trusted, UsersNamespace};
        let podman = "/user.slice/user-5.slice/user@5.service/libpod-1.scope/container";
        for (standing, uid, cgroup, tenant, expected) in [
            (Host, 1000, "/", "default", Ok(())),
            (Host, 1005, "/", "default", Ok(())),
            (Host, 1005, "/", "red", Err(Refusal::Denied)),
            (Host, 2000, "/", "default", Err(Refusal::Host)),
            // Conditions of an entry hold together.
            (UsersNamespace, 1000, "/", "default", Err(Refusal::UsersNamespace)),
            (UsersNamespace, 7, podman, "default", Ok(())),
            (Contained, 7, "/", "default", Ok(())),
            (Trusted, 0, "/", "default", Ok(())),
            (Trusted, 0, "/bad/below", "default", Err(Refusal::Denied)),
        ] {
            let told = policy.attach.decide(&newcomer(standing, uid, cgroup, tenant));
            assert_eq!(told, expected, "{standing:?} {uid} {cgroup} {tenant}");
        }
        let told = policy.to_string();
        for line in [
            "attach: deny uid 1005, tenant red",
            "attach: deny cgroup /bad",
            "attach: allow namespace of the host, uid 1000-1999",
            "attach, otherwise: containers, root, and the driver's user and group",
        ] {
            assert!(told.lines().any(|l| l == line), "{line:?} is missing in:\n{told}");
        }
        let of = |default: &str| Policy::parse(&format!("[attach]\ndefault = \"{default}\"")).unwrap().attach;
        assert_eq!(of("anyone").decide(&newcomer(Host, 9, "/", "default")), Ok(()));
        assert_eq!(of("nobody").decide(&newcomer(Trusted, 0, "/", "default")), Err(Refusal::NotNamed));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_a_remedy() {
        for (text, parts) in [
            ("\n[attach]\nallow = [{}]", &["line 3", "without conditions", "add cgroup"][..]),
            ("[attach]\ndefault = \"all\"", &["line 2", "all", "containers"]),
            ("[attach]\nallow = [{ user = 1 }]", &["line 2", "user", "expected"]),
            (
                "[attach]\ndeny = [\n{ uid = 1 },\n{ uid = \"x\" }]",
                &["line 4", "attach.deny", "\"x\"", "1000-1999"],
            ),
            ("[attach]\ndeny = [{ uid = \"9-1\" }]", &["line 2", "\"9-1\"", "range"]),
            ("[attach]\nallow = [{ cgroup = \"x\" }]", &["line 2", "cgroup \"x\"", "/red.slice"]),
            ("[attach]\nallow = [{ namespace = \"x\" }]", &["line 2", "\"x\"", "/run/netns/red"]),
            ("[attach]\nallow = [{ tenant = \"x\" }]", &["line 2", "'x' is no tenant", "[[tenant]]"]),
        ] {
            let error = Policy::parse(text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} is missing in {error:?} of {text:?}");
            }
        }
    }

    #[test]
    fn a_namespace_is_that_of_a_file() {
        let text = "[attach]\ndefault = \"nobody\"\nallow = [{ namespace = \"/proc/self/ns/net\" }]";
        let policy = Policy::parse(text).unwrap();
        let own = namespace_of_file("/proc/self/ns/net".as_ref()).unwrap();
        let here = Newcomer { namespace: own, ..newcomer(Standing::Host, 7, "/", "default") };
        assert_eq!(policy.attach.decide(&here), Ok(()));
        let elsewhere = Newcomer { namespace: NamespaceId::NONE, ..here };
        assert_eq!(policy.attach.decide(&elsewhere), Err(Refusal::NotNamed));
    }

    fn entries() -> impl Strategy<Value = Vec<(Option<u32>, Option<bool>, Option<usize>)>> {
        let uid = prop::option::of(0u32..4);
        let entry = (uid, prop::option::of(any::<bool>()), prop::option::of(0usize..2));
        prop::collection::vec(entry, 0..4)
    }

    proptest! {
        /// Compares decisions with a model that looks at each entry.
        #[test]
        fn entries_decide_as_the_model_does(
            allow in entries(), deny in entries(), default in 0usize..3, uid in 0u32..4, standing in 0usize..4, tenant in 0usize..2,
        ) {
            const TENANTS: [&str; 2] = ["default", "red"];
            let standing = [Standing::Trusted, Standing::Contained, Standing::UsersNamespace, Standing::Host][standing];
            let at_host = standing == Standing::Host;
            let holds = |entry: &(Option<u32>, Option<bool>, Option<usize>)| {
                entry.0.is_none_or(|own| own == uid)
                    && entry.1.is_none_or(|host| !host || at_host)
                    && entry.2.is_none_or(|own| own == tenant)
            };
            let entry = |&(uid, host, tenant): &(Option<u32>, Option<bool>, Option<usize>)| Entry {
                uid: uid.map(|uid| uid..=uid),
                namespace: host.filter(|host| *host).map(|_| Namespace::Host),
                tenant: tenant.map(|index| TENANTS[index].to_owned()),
                cgroup: None,
            };
            let attach = Attach {
                default: [Otherwise::Containers, Otherwise::Anyone, Otherwise::Nobody][default],
                allow: allow.iter().map(entry).collect(),
                deny: deny.iter().map(entry).collect(),
            };
            let expected = !deny.iter().any(holds)
                && (allow.iter().any(holds)
                    || default == 1
                    || default == 0 && matches!(standing, Standing::Trusted | Standing::Contained));
            let told = attach.decide(&newcomer(standing, uid, "/", TENANTS[tenant]));
            prop_assert_eq!(told.is_ok(), expected);
        }
    }
}
