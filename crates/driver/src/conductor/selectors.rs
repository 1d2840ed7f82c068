//! Selectors of a policy's tenants, for look-ups whose time does not grow with their number.
use crate::hash::HashMap;
use crate::identity::NamespaceId;
use crate::policy::Policy;
use crate::process::namespace_of_file;

/// Facts by which a client's tenant is found. All of them come from the kernel or from `pd run`.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub namespace: NamespaceId,
    pub cgroup: Option<&'a str>,
    /// Container and tenant that `pd run` registered.
    pub container: Option<(&'a str, &'a str)>,
}

/// Indices of tenants in the policy, by what selects them. No two tenants have a selector in common.
#[derive(Debug, Default)]
pub struct Selectors {
    containers: HashMap<String, usize>,
    cgroups: HashMap<String, usize>,
    /// Namespaces whose files exist.
    namespaces: HashMap<NamespaceId, usize>,
}

impl Selectors {
    /// Looks up the files of the namespaces that the policy names.
    pub fn new(policy: &Policy) -> Self {
        let mut this = Self::default();
        for (index, tenant) in policy.tenants.iter().enumerate() {
            this.containers.extend(tenant.containers.iter().map(|name| (name.clone(), index)));
            this.cgroups.extend(tenant.cgroups.iter().map(|path| (path.clone(), index)));
            let found = tenant.namespaces.iter().filter_map(|file| namespace_of_file(file).ok());
            found.for_each(|id| {
                this.namespaces.entry(id).or_insert(index);
            });
        }
        this
    }

    /// Returns the index of the first tenant that selects a client by container or control group, or else of one that does by namespace.
    pub fn find(&self, facts: &Facts<'_>) -> Option<usize> {
        let container = facts.container.and_then(|(name, _)| self.containers.get(name).copied());
        let surely = container.into_iter().chain(self.holders(facts.cgroup)).min();
        surely.or_else(|| self.namespaces.get(&facts.namespace).copied())
    }

    /// Lists the tenants that name a control group, or one above it.
    fn holders<'a>(&'a self, cgroup: Option<&'a str>) -> impl Iterator<Item = usize> + 'a {
        let parent =
            |path: &&'a str| path.rsplit_once('/').map(|(above, _)| above).filter(|it| !it.is_empty());
        let own = cgroup.filter(|_| !self.cgroups.is_empty());
        std::iter::successors(own, parent).filter_map(|path| self.cgroups.get(path).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::is_below;

    #[test]
    fn a_tenant_is_found_as_by_looking_at_all() {
        let text = "[[tenant]]\nname = \"a\"\ncgroups = [\"/x/y\", \"/z\"]\ncontainers = [\"one\"]\n\
                    [[tenant]]\nname = \"b\"\ncgroups = [\"/x\", \"/z/y/x\"]\ncontainers = [\"two\"]";
        let policy = Policy::parse(text).unwrap();
        let selectors = Selectors::new(&policy);
        let paths =
            ["/", "", "/x", "/x/", "/xy", "/x/y", "/x/yy", "/x/y/z", "/z/y", "/z/y/x", "/z//y", "x", "//x"];
        for path in paths.map(Some).into_iter().chain([None]) {
            for name in [None, Some("one"), Some("two"), Some("three")] {
                let expected = policy.tenants.iter().position(|tenant| {
                    let holds = |own: &String| path.is_some_and(|path| is_below(path, own));
                    name.is_some_and(|name| tenant.containers.iter().any(|own| own == name))
                        || tenant.cgroups.iter().any(holds)
                });
                let container = name.map(|name| (name, "default"));
                let facts = Facts { namespace: NamespaceId::NONE, cgroup: path, container };
                assert_eq!(selectors.find(&facts), expected, "{path:?} {name:?}");
            }
        }
    }
}
