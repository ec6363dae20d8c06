"""Accounts of the topics in use."""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free


cdef Tenants* tenants_new(size_t bytes_max, size_t topics_max):
    cdef Tenants* tenants = <Tenants*>calloc(1, sizeof(Tenants))
    cdef dict known = {}
    if tenants == NULL:
        raise MemoryError
    tenants.max = bytes_max - bytes_max // 8
    tenants.floor = bytes_max // topics_max
    tenants.refs = 1
    Py_INCREF(known)
    tenants.known = <PyObject*>known
    return tenants


cdef void tenants_leave(Tenants* tenants) noexcept:
    if tenants == NULL:
        return
    tenants.refs -= 1
    if tenants.refs == 0:
        Py_DECREF(<dict>tenants.known)
        free(tenants)


cdef Tenant* tenant_of(Tenants* tenants, uint64_t account):
    """The tenant of that account, for one connection more."""
    cdef dict known = <dict>tenants.known
    cdef Tenant* tenant
    where = known.get(account)
    if where is not None:
        tenant = <Tenant*><uintptr_t>where
        tenant.refs += 1
        return tenant
    tenant = <Tenant*>calloc(1, sizeof(Tenant))
    if tenant == NULL:
        raise MemoryError
    tenant.of = tenants
    tenant.account = account
    tenant.refs = 1
    known[account] = <uintptr_t>tenant
    tenants.refs += 1
    return tenant


cdef void tenant_leave(Tenant* tenant) noexcept:
    """A connection of its is over."""
    if tenant == NULL:
        return
    tenant.refs -= 1
    if tenant.refs == 0 and tenant.held == 0:
        tenant_free(tenant)


cdef void tenant_free(Tenant* tenant) noexcept:
    """It has no connection, and pays for nothing."""
    cdef Tenants* tenants = tenant.of
    (<dict>tenants.known).pop(tenant.account)
    free(tenant)
    tenants_leave(tenants)
