# Who pays for the topics in use: those that a message on its way or an alias points to, so that none of them can be
# forgotten to make room for others.
#
# Laws:
#   a topic in use is paid for by whoever put it to use, until nothing points to it any more; a small one counts as an
#   even part of the bound; one with a retained message is paid for there (retained_messages.pxd)
#   all together never pay for more than seven eighths of the table, so it always has topics that can make room
#   who has put to use as much as is still free is refused more: one client has half of that room at most, and whoever
#   comes next finds some
#   who pays is a client identifier, whatever its connections; what another broker, a journal or the broker itself
#   brought is nobody's
#   a tenant lives as long as a connection or a topic of its, all of them as long as the table or one tenant

from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t


cdef struct Tenants:
    size_t held         # what all pay for
    size_t max
    size_t floor        # what a topic counts as, at least
    size_t refs         # tenants, and the table
    PyObject* known     # owned: a dictionary, account -> where its tenant is


cdef struct Tenant:
    Tenants* of
    uint64_t account
    size_t held
    size_t refs         # connections


cdef Tenants* tenants_new(size_t bytes_max, size_t topics_max)
cdef void tenants_leave(Tenants* tenants) noexcept
cdef Tenant* tenant_of(Tenants* tenants, uint64_t account)
cdef void tenant_leave(Tenant* tenant) noexcept
cdef void tenant_free(Tenant* tenant) noexcept


cdef inline bint tenant_rent(Tenant* tenant, size_t size, bint whether) noexcept nogil:
    """Pays so much for a topic; 0 when there is no room for it. `whether`: it may be refused."""
    cdef Tenants* all = tenant.of
    if whether and tenant.held + all.held + 2 * size > all.max:
        return 0
    tenant.held += size
    all.held += size
    return 1


cdef inline void tenant_give_back(Tenant* tenant, size_t size) noexcept:
    tenant.held -= size
    tenant.of.held -= size
    if tenant.held == 0 and tenant.refs == 0:
        tenant_free(tenant)
